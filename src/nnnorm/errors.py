"""Errors and warnings for users, checks of numbers and types, and imports of optional libraries.

Every message states what was expected, what arrived, and what to do. `NNNormError` is a
`ValueError`, so code that handles invalid values also handles it.
"""

import importlib
import os
import re
import sys
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any
from urllib.parse import unquote

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep

# Errors of usearch and DuckDB after a Ctrl-C.
_INTERRUPTED = ("Operation has been terminated", "Query interrupted", "INTERRUPT Error")
# User and password: up to the last @, since a password may hold one, or a space. A Path has lost a
# slash. All repetitions are bounded, since a text may have 100,000 letters.
_USER = re.compile(r"((?<=\w\w)://?|//)(\S{0,500}|[^\s/@:]{1,99}:[^/@]{0,300})@")
# Options of an address and of a signed URL: passwords, tokens, keys and signatures.
_SECRET = re.compile(
    r"(?i)((?:pass|pwd|token(?!s)|secret|signature|credential|[_-]key|apikey|accesskey|accountkey)"
    r"[\w-]{0,40}\s{0,3}=\s{0,3}|authorization\W{1,5}(?:\w{1,9} )?"
    r"|(?<=[?&;])(?:sig|key|auth|code|pw)=)"
    r"((?:'(?:[^'\\]|\\.)*'|\\.|[^\s&\\])+)"
)
# Every option of a web address, since each site has its own names for secrets.
_WEB = re.compile(r"(?i)(https?:/[^\s?#]{0,500})([?#]\S+)")
_OPTION = re.compile(r"([?&;#][\w.-]{0,30}=?)[^?&;#\s]*")
_HALF = re.compile("[\ud800-\udfff]")
_JOINERS = "\u200c\u200d"  # format characters that some scripts and emoji need


class NNNormError(ValueError):
    """Raised if input can't be used, or a file or service fails.

    The message is one sentence: what was expected, what arrived, and what to do. It is a
    `ValueError`.
    """


class MissingExtraError(ImportError):
    """Raised if a feature needs a library that isn't installed; the message has the command."""


class NNNormWarning(UserWarning):
    """Issued if a result may not be what you want; the message has the reason and what to do.

    To turn these warnings into errors, call
    ``warnings.simplefilter("error", nnnorm.NNNormWarning)``.
    """


def warn(message: str) -> None:
    """Issue an `NNNormWarning` that points to the caller's line, outside of this package."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, NNNormWarning, stacklevel=level)


def check_number(name: str, value: Any, low: float = -1e6, high: float = 1e6) -> float:
    """Return `value` as a float; raise an error unless it is a number within the bounds."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise NNNormError(f"{name} must be a number from {low:g} to {high:g}; got {value!r:.60}")
    return float(value)


def check_count(name: str, value: Any, most: int | None = None, what: str = "") -> int:
    """Return `value` as an int; raise an error unless it is a whole number within the bounds."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or value < 1 or (most is not None and value > most):
        expected = "a whole number of at least 1"
        if most is not None:
            expected = f"a whole number from 1 to {most}{f', {what}' if what else ''}"
        raise NNNormError(f"{name} must be {expected}; got {value!r:.60}")
    return int(value)


def check_type(name: str, value: object, kind: type, how: str) -> None:
    """Raise an error unless `value` is an instance of `kind`; `how` describes where to get one."""
    if not isinstance(value, kind):
        raise NNNormError(f"{name} must be a {kind.__name__}, {how}; got {type(value).__name__}")


def plural(n: int, noun: str) -> str:
    """Write a number with a noun: "1 query", "2,000 queries"."""
    if n != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{n:,} {noun}"


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, or its type if it has no text."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and the errors that caused it."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:  # Milvus's causes are circular
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def show_url(text: object) -> str:
    """Return a URL, or text with URLs, without users, passwords, keys and signatures."""
    shown = _SECRET.sub(r"\1…", _USER.sub(r"\1…@", str(text)))
    return _WEB.sub(lambda found: found[1] + _OPTION.sub(r"\1…", found[2]), shown)


def hide_secrets(text: str, address: str, *others: str | None) -> str:
    """Remove the secrets of an address, and other secrets, from another library's message."""
    found = _USER.search(address)
    _, _, password = (found[2] if found else "").partition(":")
    signed = [match[2] for match in _SECRET.finditer(address)]
    for secret in (password, *signed, *others):
        for form in (secret, unquote(secret or "")):
            text = text.replace(form, "…") if form else text
    return show_url(text)


def printable(text: object, keep: str = "") -> str:
    r"""Escape control characters and invisible ones, so that data can be printed to a terminal.

    >>> printable("a\x1b]0;title\x07\nb")
    'a\\x1b]0;title\\x07\\nb'
    """
    return "".join(
        one if one in keep or not _controls(one) else one.encode("unicode_escape").decode()
        for one in str(text)
    )


def _controls(letter: str) -> bool:
    """Whether a letter is a control, a direction mark, a line break or a surrogate."""
    return letter not in _JOINERS and unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def has_surrogates(text: str) -> bool:
    """Whether a text has halves of pairs, which UTF-8 can't encode."""
    return _HALF.search(text) is not None


@contextmanager
def keep_interrupts() -> Iterator[None]:
    """Raise `KeyboardInterrupt` if a library converts a Ctrl-C to an error of its own."""
    try:
        yield
    except NNNormError:  # its message may contain how to continue
        raise
    except Exception as error:
        for one in causes_of(error):
            if isinstance(one, KeyboardInterrupt) or str(one).startswith(_INTERRUPTED):
                raise KeyboardInterrupt from error
        raise


@contextmanager
def quiet(message: str = "") -> Iterator[None]:
    """Ignore `NNNormWarning`, or only those whose message starts with a pattern."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message, NNNormWarning)
        yield


def require(module: str, extra: str) -> Any:
    """Import `module`; if it isn't installed, raise an error that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = module.partition(".")[0]
        if error.name != library:
            raise
        raise MissingExtraError(
            f"{library} is needed, but not installed; run: pip install 'nnnorm[{extra}]'"
        ) from None
