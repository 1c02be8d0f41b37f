"""Which methods a corrector takes, and the method with the numbers that a fit settled."""

from dataclasses import fields

from nnnorm.bias import Bias
from nnnorm.errors import NNNormError
from nnnorm.methods import Method, find_method, make_method


def check_method(method: Method) -> None:
    """Raise unless the method gives each item a value of its own, as a corrector needs."""
    if not isinstance(method, Method):
        raise NNNormError(f"method must be a method such as NNN(); got {type(method).__name__}")
    if method.gated_by:
        raise NNNormError(
            f"method {method.name} decides per query, by which items are the best of the whole "
            "gallery, so later items have no value of their own; use it without its gate, or nnn"
        )
    if not method.values_each_item:
        raise NNNormError(
            f"method {method.name} balances all items of a gallery at once, so later items have no "
            "value of their own; use nnn, csls, dn or is"
        )


def resolved_method(bias: Bias) -> Method:
    """The method with the numbers that a fit chose, from the parameters of its bias."""
    kind, variant = find_method(bias.method)
    names = {part.name for part in fields(kind)} - set(variant.fixed)
    chosen = {name: bias.params[name] for name in names if name in bias.params}
    method = make_method(bias.method, **chosen)
    return make_method(bias.method, **method.params)  # without what only an automatic choice needs
