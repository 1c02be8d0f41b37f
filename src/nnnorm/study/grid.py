"""All settings of all methods from one pass over each bank.

An item's 512 best reference scores, sorted, give every ``m_k`` by prefix means, and a bias is
linear in α. The log-mean-exps of every β, from the same pass, give every inverted softmax, and the
whole grid of DBNorm by additions. The formulas are those of the methods; a `Setting` applies one
when its correction is asked for, so a grid of hundreds costs a few vectors.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.dedup import References, count_references, describe_size
from nnnorm.embeddings import Embeddings
from nnnorm.errors import NNNormError
from nnnorm.methods import Grid, Method, MethodName, Statistics, find_method, make_method

FloatArray: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Setting:
    """One cell of a grid.

    Attributes
    ----------
    method : Method
    params : dict
        The cell's parameters; others have the defaults of the method.
    statistics : Statistics
        Of the gallery, shared by all settings.
    """

    method: Method
    params: Mapping[str, Any]
    statistics: Statistics

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.method.name

    def correction(self) -> FloatArray:
        """What is taken from every score, shape ``(n_gallery,)``, in the arithmetic of `search`."""
        values = np.asarray(self.method.values(self.statistics), dtype=np.float32)
        return np.float32(self.method.weight) * values


def make_settings(
    methods: Sequence[MethodName],
    gallery: Embeddings,
    references: References,
    *,
    gallery_references: Embeddings | None = None,
    grids: Mapping[str, Grid] | None = None,
    **options: Any,
) -> list[Setting]:
    """Lay out the grids of some methods and scan the banks once for all of them.

    Parameters
    ----------
    methods : sequence of str
        Names of methods.
    gallery : Embeddings, shape (n_gallery, dim)
    references : Embeddings or UniqueRows, shape (n_references, dim)
    gallery_references : Embeddings, optional
        For the methods that use a gallery bank.
    grids : dict, optional
        Method name to its grid, instead of the default grid of the method.
    **options
        ``memory_budget`` and ``progress``.

    Returns
    -------
    list of Setting

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> items, bank = open_embeddings(np.eye(4)), open_embeddings(np.eye(4))
    >>> len(make_settings(["nnn"], items, bank))  # k = 1, 2, 4 and fourteen α
    42
    """
    check_grids(grids, methods)
    cells = [
        (method, params)
        for name in methods
        for method, params in _cells(name, (grids or {}).get(name), references)
    ]
    if gallery_references is None:
        for method, _ in cells:
            method.check_gallery_bank(False)
    statistics = Statistics.of_embeddings(gallery, references, gallery_references, **options)
    for name in methods:
        if name not in (grids or {}):
            for method in find_method(name)[0].further_cells(statistics):
                if method not in (known for known, _ in cells):
                    cells.append((method, method.params))
    prepare(statistics, [method for method, _ in cells])
    return [Setting(method, params, statistics) for method, params in cells]


def prepare(statistics: Statistics, methods: Sequence[Method]) -> None:
    """Compute the statistics of several methods in one pass over each bank.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import CSLS, open_embeddings
    >>> statistics = Statistics.of_embeddings(*[open_embeddings(np.eye(3))] * 2)
    >>> prepare(statistics, [CSLS(1), CSLS(2)])
    >>> statistics.mean_of_best(2).tolist()
    [0.5, 0.5, 0.5]
    """
    statistics.prepare(method.needs for method in methods)
    for kind in {type(method): None for method in methods}:
        kind.share_work([method for method in methods if type(method) is kind], statistics)


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


def _cells(
    name: MethodName, grid: Grid | None, references: References
) -> Iterator[tuple[Method, dict[str, Any]]]:
    """The method and parameters of every cell; the default grid leaves out k beyond the bank."""
    parts = _grid_parts(name, find_method(name)[1].grid if grid is None else grid)
    seen = set()
    for axes in parts:
        for values in itertools.product(*(axes[param] for param in parts[0])):
            params = dict(zip(parts[0], map(_plain, values), strict=True))
            method = make_method(name, **params)
            method.check_tunable()
            reference_k = method.needs.reference_k or 0
            if reference_k > len(references):
                if grid is None:
                    continue
                raise NNNormError(
                    f"the grid of {name} has reference_k {reference_k}, but there are only "
                    f"{describe_size(count_references(references), len(references))}"
                )
            if method not in seen:
                seen.add(method)
                yield method, params


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
    has_axes = all(parts) or not find_method(name)[1].grid
    if not parts or not has_axes or not all(len(v) for axes in parts for v in axes.values()):
        raise NNNormError(f"the grid of {name} is empty; give each parameter at least one value")
    return parts


def _plain(value: Any) -> Any:
    """A number as Python has it, for JSON."""
    return value.item() if isinstance(value, np.generic) else value
