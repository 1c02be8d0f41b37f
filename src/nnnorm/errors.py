"""The errors and warnings a user meets, and the one way to ask for an optional library.

Every message says what was expected, what arrived, and what to do about it. `NNNormError` is a
`ValueError`, so code that already guards against bad values keeps working.
"""

import difflib
import functools
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep

# How usearch and DuckDB report a Ctrl-C.
_INTERRUPTED = ("Operation has been terminated", "Query interrupted", "INTERRUPT Error")

# What other libraries call our arguments; the first that a function has is the one that is meant.
_OTHER_NAMES = {
    "alpha": ("weight",),
    "bank": ("references",),
    "corpus": ("gallery",),
    "documents": ("gallery",),
    "engine": ("solver",),
    "items": ("gallery",),
    "k": ("reference_k",),
    "labels": ("truth",),
    "lambda_": ("weight",),
    "n_neighbors": ("reference_k", "k"),
    "query_bank": ("references",),
    "relevant": ("truth",),
    "temperature": ("tau", "beta"),
    "top_k": ("k",),
    "weight": ("alpha",),
}


class NNNormError(ValueError):
    """Input that can't be used, with one sentence that says what to do."""


class ArgumentError(NNNormError, TypeError):
    """An argument that is missing, misspelt, or given by position where it needs its name."""


class MissingExtraError(ImportError):
    """A feature whose library is not installed, with the install command."""


class NNNormWarning(UserWarning):
    """An answer that may not be what was meant, with one sentence that says how to tell."""


def explain_arguments(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function so that a wrong argument gets a sentence that names the right one."""
    signature = inspect.signature(function)
    owner, _, last = function.__qualname__.rpartition(".")
    name = owner if last == "__init__" else last

    @functools.wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except TypeError:
            # Afterwards, because a search of one query takes hardly longer than this does.
            try:
                signature.bind(*args, **kwargs)
            except TypeError:
                raise ArgumentError(_explain(name, signature, args, kwargs)) from None
            raise

    return checked


def _explain(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    owner = {"self", "cls"}.intersection(signature.parameters)
    parameters = {key: one for key, one in signature.parameters.items() if key not in owner}
    n_given = len(args) - len(owner)
    for key in kwargs:
        if key not in parameters:
            known = [other for other in _OTHER_NAMES.get(key, ()) if other in parameters]
            meant = known[:1] or difflib.get_close_matches(key, parameters, n=1)
            hint = f"did you mean {meant[0]!r}?" if meant else f"it has {', '.join(parameters)}"
            return f"{name} has no argument {key!r}; {hint}"
    by_position = [key for key, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    if n_given > len(by_position):
        rest = [key for key in parameters if key not in by_position]
        return (
            f"{name} takes {' and '.join(by_position) or 'nothing'} by position; got {n_given} "
            f"arguments. Give the others by name, such as {rest[0]}=…"
            if rest
            else f"{name} takes {', '.join(by_position) or 'no arguments'}; got {n_given} arguments"
        )
    if twice := [key for key in by_position[:n_given] if key in kwargs]:
        return f"{name} got {twice[0]!r} twice, by position and by name; give it once"
    missing = [
        key
        for key, one in parameters.items()
        if one.default is one.empty and key not in kwargs and key not in by_position[:n_given]
    ]
    return f"{name} needs {' and '.join(missing)}; give {', '.join(f'{key}=…' for key in missing)}"


def warn(message: str) -> None:
    """Issue an `NNNormWarning` that points at the first line outside of this package."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, NNNormWarning, stacklevel=level)


def first_line(error: BaseException) -> str:
    r"""What another library's error says, short enough to quote; its kind if it says nothing."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


@contextmanager
def keep_interrupts() -> Iterator[None]:
    """Raise a Ctrl-C as `KeyboardInterrupt` where a library turned it into an error of its own."""
    try:
        yield
    except NNNormError:  # one sentence already, which may say how to continue
        raise
    except Exception as error:
        if _is_interrupt(error):
            raise KeyboardInterrupt from error
        raise


@contextmanager
def quiet(message: str = "") -> Iterator[None]:
    """Drop our own warnings, or those whose message starts with a pattern."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message, NNNormWarning)
        yield


def _is_interrupt(error: BaseException | None) -> bool:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        said = isinstance(error, RuntimeError) and str(error).startswith(_INTERRUPTED)
        if said or isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def require(module: str, extra: str) -> Any:
    """Import `module`, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = module.partition(".")[0]
        if error.name != library:
            raise
        raise MissingExtraError(
            f"{library} is not installed and this needs it; run: pip install 'nnnorm[{extra}]'"
        ) from None
