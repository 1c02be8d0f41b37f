"""All settings of all methods from one pass over each bank.

An item's 512 best reference scores, sorted, give every ``m_k`` by prefix means, and a bias is
linear in α. The log-mean-exps of every β, from the same pass, give every inverted softmax, and
DBNorm's whole grid by additions. A `Setting` makes its values when they are asked for, so a grid of
hundreds costs a few vectors.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError
from nnnorm.io import Embeddings, Progress
from nnnorm.methods import METHOD_NAMES, Method, MethodName, make_method
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Products, mean, scan, top_k

__all__ = ["DEFAULT_GRIDS", "Bank", "Grid", "Setting", "check_grids", "make_settings", "scan_bank"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
# Like scikit-learn's: values per parameter, all combined; or several such, one after another.
Grid: TypeAlias = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]

_POWERS_OF_TWO = tuple(2**power for power in range(10))
_BETAS = tuple(float(f"{beta:.4g}") for beta in np.geomspace(0.001, 400, 20))
_FINE_GALLERY = tuple(float(f"{beta:.4g}") for beta in np.geomspace(0.001, 15, 20))
_FINE_QUERY = tuple(float(f"{beta:.4g}") for beta in np.geomspace(25, 200, 20))
_DUAL: Grid = (
    {"beta_query": (0.0, *_BETAS), "beta_gallery": (0.0, *_BETAS)},
    {"beta_query": _FINE_QUERY, "beta_gallery": _FINE_GALLERY},
)

# The paper's grids where it has them (NNN, DBNorm and so the inverted softmax); DN's three
# published weights; for the others what brackets their published settings.
DEFAULT_GRIDS: Mapping[MethodName, Grid] = {
    "none": {},
    "nnn": {
        "reference_k": _POWERS_OF_TWO,
        "alpha": tuple(float(alpha) for alpha in np.arange(0.25, 1.501, 0.125)),
    },
    "csls": {"reference_k": _POWERS_OF_TWO},
    "dn": {"weight": (0.25, 0.5, 1.0)},
    "is": {"beta": _BETAS},
    "qbnorm": {"beta": _BETAS},
    "dualis": _DUAL,
    "dualdis": _DUAL,
    "sinkhorn": {"tau": (0.005, 0.01, 0.02, 0.05, 0.1)},
}


@dataclass(frozen=True, eq=False)
class Setting:
    """One cell of a grid.

    Attributes
    ----------
    method : str
    params : dict
        What `make_method` takes.
    weight : float
    values : callable
        Gives the bias values, shape ``(n_gallery,)``, float32.
    """

    method: MethodName
    params: Mapping[str, Any]
    weight: float
    values: Callable[[], FloatArray]

    def correction(self) -> FloatArray:
        """What is taken from every score, in the arithmetic of `search`."""
        return np.float32(self.weight) * self.values()


@dataclass(frozen=True, eq=False)
class Bank:
    """What one pass over a bank leaves: all that the settings of a grid are made of.

    Attributes
    ----------
    gallery, references : Embeddings
    gallery_references : Embeddings or None
    means : dict
        ``m_k`` by k, and the mean over all references as ``means["all"]``.
    logs, gallery_logs : dict
        Log-mean-exp by β, of the references and of the gallery bank.
    """

    gallery: Embeddings
    references: Embeddings
    gallery_references: Embeddings | None = None
    means: dict[Any, FloatArray] = field(default_factory=dict)
    logs: dict[float, npt.NDArray[np.float64]] = field(default_factory=dict)
    gallery_logs: dict[float, npt.NDArray[np.float64]] = field(default_factory=dict)


def make_settings(
    methods: Sequence[MethodName],
    gallery: Embeddings,
    references: Embeddings,
    *,
    gallery_references: Embeddings | None = None,
    grids: Mapping[str, Grid] | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> tuple[list[Setting], Bank]:
    """Lay out the grids of some methods and scan the banks once for all of them.

    Parameters
    ----------
    methods : sequence of str
        From `METHOD_NAMES`.
    gallery : Embeddings, shape (n_gallery, dim)
    references : Embeddings, shape (n_references, dim)
    gallery_references : Embeddings, optional
        Needed by "dualis" and "dualdis".
    grids : dict, optional
        Method name to its grid, instead of `DEFAULT_GRIDS`.
    memory_budget : int
    progress : callable, optional

    Returns
    -------
    settings : list of Setting
    bank : Bank

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> items, bank = open_embeddings(np.eye(4)), open_embeddings(np.eye(4))
    >>> len(make_settings(["nnn"], items, bank)[0])  # k = 1, 2, 4 and eleven α
    33
    """
    check_grids(grids, methods)
    cells = {name: list(_cells(name, (grids or {}).get(name), len(references))) for name in methods}
    asked = [(name, params) for name, rows in cells.items() for params in rows]
    bank = Bank(gallery, references, gallery_references)
    scan_bank(bank, asked, memory_budget=memory_budget, progress=progress)
    return [_setting(name, params, bank, memory_budget) for name, params in asked], bank


def check_grids(grids: Mapping[str, Grid] | None, methods: Sequence[MethodName]) -> None:
    """Raise where a grid was given for a method that was not asked for.

    Examples
    --------
    >>> check_grids({"csls": {"reference_k": [1]}}, ["none", "csls"])
    """
    if unknown := [name for name in (grids or {}) if name not in methods]:
        raise NNNormError(
            f"a grid was given for {unknown[0]}, which is not among the methods "
            f"({', '.join(methods)})"
        )


def scan_bank(
    bank: Bank,
    asked: Sequence[tuple[MethodName, Mapping[str, Any]]],
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> None:
    """Fill `bank` with every m_k and every log-mean-exp that the asked settings need.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> bank = Bank(open_embeddings(np.eye(3)), open_embeddings(np.eye(3)))
    >>> scan_bank(bank, [("csls", {"reference_k": 2})])
    >>> bank.means[2].tolist()
    [0.5, 0.5, 0.5]
    """
    n_gallery = len(bank.gallery)
    ks = sorted({params["reference_k"] for _, params in asked if "reference_k" in params})
    betas = _wanted(asked, ("beta", "beta_query"))
    gallery_betas = _wanted(asked, ("beta_gallery",))
    needs_bank = gallery_betas or any(name == "dualdis" for name, _ in asked)
    if needs_bank and bank.gallery_references is None:
        raise NNNormError(
            "dualis and dualdis need a gallery bank: give gallery_references, or leave them out"
        )
    scores = Products(bank.gallery, bank.references, memory_budget=memory_budget)
    options: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
    if ks or betas:
        bank.means.update({k: np.empty(n_gallery, dtype=np.float32) for k in ks})
        bank.logs.update({beta: np.empty(n_gallery) for beta in betas})
        for start, stop, best, logs in scan(scores, k=max(ks, default=0), betas=betas, **options):
            for k in ks:
                bank.means[k][start:stop] = best[:, :k].mean(axis=1, dtype=np.float64)
            for beta, log in zip(betas, logs, strict=True):
                bank.logs[beta][start:stop] = log
    if any(name == "dn" for name, _ in asked):
        bank.means["all"] = mean(scores, **options)
    if gallery_betas and bank.gallery_references is not None:
        both = Products(bank.gallery, bank.gallery_references, memory_budget=memory_budget)
        bank.gallery_logs.update({beta: np.empty(n_gallery) for beta in gallery_betas})
        for start, stop, _, logs in scan(both, k=0, betas=gallery_betas, **options):
            for beta, log in zip(gallery_betas, logs, strict=True):
                bank.gallery_logs[beta][start:stop] = log


def find_active(bank: Embeddings, gallery: Embeddings, memory_budget: int) -> npt.NDArray[np.bool_]:
    """The gate's activation set: items that are some bank row's best, shape (n_gallery,).

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> find_active(open_embeddings(np.eye(3)[:1]), open_embeddings(np.eye(3)), 2**20).tolist()
    [True, False, False]
    """
    products = Products(bank, gallery, memory_budget=memory_budget)
    active = np.zeros(len(gallery), dtype=bool)
    active[top_k(products, 1, memory_budget=memory_budget).indices[:, 0]] = True
    return active


def _wanted(
    asked: Sequence[tuple[MethodName, Mapping[str, Any]]], names: tuple[str, ...]
) -> list[float]:
    betas = {params[name] for _, params in asked for name in names if params.get(name)}
    return sorted(betas)


def _cells(name: MethodName, grid: Grid | None, n_references: int) -> Iterator[dict[str, Any]]:
    """The parameters of every cell; the default grid leaves out k beyond the bank."""
    if name not in METHOD_NAMES:
        raise NNNormError(f"method must be one of {', '.join(METHOD_NAMES)}; got {name!r}")
    parts = _grid_parts(name, DEFAULT_GRIDS[name] if grid is None else grid)
    seen = set()
    for axes in parts:
        for values in itertools.product(*(axes[param] for param in parts[0])):
            params = dict(zip(parts[0], map(_plain, values), strict=True))
            _check_cell(name, params)
            if params.get("reference_k", 0) > n_references:
                if grid is None:
                    continue
                raise NNNormError(
                    f"the grid of {name} has reference_k {params['reference_k']}, but there are "
                    f"only {n_references} references"
                )
            if tuple(params.items()) not in seen:
                seen.add(tuple(params.items()))
                yield params


def _grid_parts(name: MethodName, grid: Grid) -> list[Mapping[str, Sequence[Any]]]:
    """The grids that make up a grid, once each is known to give values to the same parameters."""
    parts = [grid] if isinstance(grid, Mapping) else list(grid)
    for axes in parts:
        if not isinstance(axes, Mapping):
            raise NNNormError(
                f"the grid of {name} must be a dict of parameters to lists of values, or a list of "
                f"such; got {axes!r}"
            )
        for param, values in axes.items():
            if isinstance(values, str) or not hasattr(values, "__len__"):
                raise NNNormError(
                    f"the grid of {name} must give {param} a list of values; got {values!r}"
                )
        if set(axes) != set(parts[0]):
            raise NNNormError(
                f"all parts of the grid of {name} must have the same parameters; got "
                f"{', '.join(parts[0])} and {', '.join(axes)}"
            )
    has_axes = name == "none" or all(parts)
    if not parts or not has_axes or not all(len(v) for axes in parts for v in axes.values()):
        raise NNNormError(f"the grid of {name} is empty; give each parameter at least one value")
    return parts


def _check_cell(name: MethodName, params: Mapping[str, Any]) -> None:
    """Refuse what the method would refuse, and what a sweep can't do."""
    make_method(name, **params)
    if name == "nnn" and "auto" in (params.get(p, "auto") for p in ("reference_k", "alpha")):
        raise NNNormError("the grid of nnn needs numbers for both reference_k and alpha, not auto")
    if params.get("gate") == "safe":
        raise NNNormError("dualdis can be tuned in its published form only; leave out gate 'safe'")


def _plain(value: Any) -> Any:
    """Numbers as Python has them, for JSON."""
    return value.item() if isinstance(value, np.generic) else value


def _setting(name: MethodName, params: dict[str, Any], bank: Bank, memory_budget: int) -> Setting:
    n_gallery = len(bank.gallery)
    if name in ("nnn", "csls"):
        weight = params["alpha"] if name == "nnn" else 0.5
        return Setting(name, params, weight, lambda: bank.means[params["reference_k"]])
    if name == "dn":
        return Setting(name, params, params["weight"], lambda: bank.means["all"])
    if name == "sinkhorn":
        return Setting(name, params, 1.0, _Once(make_method(name, **params), bank, memory_budget))
    beta_query = params.get("beta", params.get("beta_query", 0.0))
    beta_gallery = params.get("beta_gallery", 0.0)

    def soft_maximum() -> FloatArray:
        total = np.zeros(n_gallery)
        if beta_query:
            total = total + bank.logs[beta_query] / (beta_query + beta_gallery)
        if beta_gallery:
            total = total + bank.gallery_logs[beta_gallery] / (beta_query + beta_gallery)
        return total.astype(np.float32)

    return Setting(name, params, 1.0, soft_maximum)


@dataclass(eq=False)
class _Once:
    """Values of a method that shares nothing with others, fitted when first asked for."""

    method: Method
    bank: Bank
    memory_budget: int
    fitted: FloatArray | None = None

    def __call__(self) -> FloatArray:
        if self.fitted is None:
            bias = self.method.fit(
                self.bank.gallery,
                self.bank.references,
                gallery_references=self.bank.gallery_references,
                memory_budget=self.memory_budget,
            )
            self.fitted = bias.values
        return self.fitted
