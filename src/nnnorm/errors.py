"""The two errors a user meets, and the one way to ask for an optional library.

Every message says what was expected, what arrived, and what to do about it. `NNNormError` is a
`ValueError`, so code that already guards against bad values keeps working.
"""

import importlib
from typing import Any

__all__ = ["MissingExtraError", "NNNormError", "first_line", "require"]


class NNNormError(ValueError):
    """Input that can't be used, with one sentence that says what to do."""


class MissingExtraError(ImportError):
    """A feature whose library is not installed, with the install command."""


def first_line(error: BaseException) -> str:
    r"""What another library's error says, short enough to quote; its kind if it says nothing.

    Examples
    --------
    >>> first_line(ValueError("cut short\nat byte 12")), first_line(EOFError())
    ('cut short', 'EOFError')
    """
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def require(module: str, extra: str) -> Any:
    """Import `module`, or say which extra brings it.

    Only the absence of that very library becomes a `MissingExtraError`; a library that is there and
    fails to import shows its own error.

    Parameters
    ----------
    module : str
        Dotted module name, such as ``"pyarrow.parquet"``.
    extra : str
        The extra that installs it, such as ``"parquet"``.

    Returns
    -------
    module
        The imported module.

    Examples
    --------
    >>> require("json", "none").dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = module.partition(".")[0]
        if error.name != library:
            raise
        raise MissingExtraError(
            f"{library} is not installed and this needs it; run: pip install 'nnnorm[{extra}]'"
        ) from None
