"""The methods: each computes a `Bias` from a gallery and past queries.

A term that is the same for all items never changes the ranking of a query. Without such terms,
every method ranks items by ``s(q, r) − b(r)``. In these formulas, m_k is the mean of the item's k
best reference scores, m_all the mean of all of them, and L_β the log-mean-exp of β times these
scores:

    none       uncorrected        0
    nnn        nnn                α·m_k
    csls       csls               ½·m_k
    dn         dn                 λ·m_all
    is         inverted_softmax   L_β/β
    qbnorm     … gated            the same, for queries whose raw best item is in an activation set
    dualis     dual_softmax       (L_βg(gallery bank) + L_βq(references)) / (βg + βq)
    dualdis    … gate             the same, with an activation set per term
    sinkhorn   sinkhorn           τ·log Σ_j w_j·exp(s_j/τ), w from entropic transport (`softmax`)

The middle column is the file with the formula. `base` has `fit`, and computes m_k and L_β. To add a
method, add a file and a line in `METHODS`. No method normalizes embeddings. Values may differ from
those of a paper by a constant, which changes no ranking, so that all values are on the scale of a
score.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from nnnorm.errors import NNNormError
from nnnorm.methods.base import Grid, Method, Statistics, Variant, open_groups, open_references
from nnnorm.methods.csls import CSLS
from nnnorm.methods.dn import DN
from nnnorm.methods.dual_softmax import DualSoftmax, published_product
from nnnorm.methods.inverted_softmax import InvertedSoftmax
from nnnorm.methods.nnn import NNN, PAPER_GRID
from nnnorm.methods.sinkhorn import Sinkhorn
from nnnorm.methods.uncorrected import NO_CORRECTION, Uncorrected

# In the order of tables and help.
METHODS: Final = (Uncorrected, NNN, CSLS, DN, InvertedSoftmax, DualSoftmax, Sinkhorn)
_BY_NAME: Final[dict[str, tuple[type[Method], Variant]]] = {
    variant.name: (kind, variant) for kind in METHODS for variant in kind.variants
}
METHOD_NAMES: Final[tuple[str, ...]] = tuple(_BY_NAME)
if TYPE_CHECKING:
    MethodName: TypeAlias = str
else:  # the command line reads its choices from this
    MethodName = Literal[METHOD_NAMES]


def find_method(name: str) -> tuple[type[Method], Variant]:
    """Find the class and the variant with a command-line name."""
    if name not in _BY_NAME:
        raise NNNormError(f"method must be one of {', '.join(METHOD_NAMES)}; got {name!r}")
    return _BY_NAME[name]


def list_params(name: str) -> list[str]:
    """List the parameters of a method, by its command-line name."""
    kind, variant = find_method(name)
    return [part.name for part in fields(kind) if part.name not in variant.fixed]


def make_method(name: MethodName, **params: Any) -> Method:
    """Create a method from its command-line name and its parameters."""
    kind, variant = find_method(name)
    names = list_params(name)
    if unknown := [param for param in params if param not in names]:
        raise NNNormError(
            f"method {name} takes {', '.join(names) or 'no parameters'}; got {', '.join(unknown)}"
        )
    given = {**variant.preset, **params}
    required = (part.name for part in fields(kind) if part.default is MISSING)
    missing = [param for param in required if param not in (*variant.fixed, *given)]
    if missing:
        raise NNNormError(f"method {name} needs {' and '.join(missing)}; pass numbers (--set)")
    method = kind(**variant.fixed, **given)
    if method.name != name:
        what = ", ".join(f"{param}={given[param]!r}" for param in variant.preset)
        raise NNNormError(f"with {what}, this is method {method.name}, not {name}; leave it out")
    return method


def label_method(name: str) -> str:
    """Return the name of a method in tables and plots, or `name` itself if it is unknown."""
    return _BY_NAME[name][1].label if name in _BY_NAME else name


def describe_setting(name: str, params: Mapping[str, Any], between: str = " ") -> str:
    """Format the parameters of a method for tables; booleans only if they are true."""
    shown = _BY_NAME[name][0].shown if name in _BY_NAME else ()
    return between.join(
        f"{param}={value if isinstance(value, int) else f'{value:.4g}'}"
        for param, value in params.items()
        if param in shown and value is not False
    )
