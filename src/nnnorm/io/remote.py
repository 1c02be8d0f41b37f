"""Files behind a URL (``s3://``, ``gs://``, ``hdfs://``), copied by fsspec and read from here.

Needs fsspec (`pip install 'nnnorm[remote]'`) and what fsspec asks for per kind of URL: s3fs, gcsfs.
A fit reads its rows several times, so they are copied to a temporary folder once. It is removed
when the process ends.
"""

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.io.urls import hide_secrets, show_url

# A Path has lost the second slash of a URL. One letter is a drive of Windows.
_URL = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]+):/+(.*)$", re.DOTALL)
_COPIES: list[tempfile.TemporaryDirectory[str]] = []


def find_place(path: str | os.PathLike[str]) -> Path | str:
    """A path of this machine, or a URL as text."""
    text = os.fspath(path)
    match = _URL.match(text) if isinstance(text, str) else None
    if match is None:
        return Path(text)
    scheme, rest = match.groups()
    return Path(f"/{rest}") if scheme == "file" else f"{scheme}://{rest}"


def fetch(url: str, choose: Callable[[Path], list[Path]]) -> list[Path]:
    """Copy those files that `choose` finds in a folder of empty files with the same names."""
    fsspec = require("fsspec", "remote")
    _COPIES.append(tempfile.TemporaryDirectory(prefix="nnnorm-", ignore_cleanup_errors=True))
    folder = Path(_COPIES[-1].name)
    try:
        fs, path = fsspec.core.url_to_fs(url)
        fs.invalidate_cache()  # what another process wrote since must be seen
        parent, _, last = path.rstrip("/").rpartition("/")
        for found in fs.find(path) if fs.isdir(path) else fs.glob(path):
            here = folder / found[len(parent) :].lstrip("/")
            here.parent.mkdir(parents=True, exist_ok=True)
            here.touch()
        chosen = choose(folder / last)
        for here in chosen:
            fs.get_file(f"{parent}/{here.relative_to(folder).as_posix()}", str(here))
    except NNNormError:
        raise
    except Exception as error:  # every kind of store raises its own
        reason = hide_secrets(first_line(error), url)
        raise NNNormError(
            f"{show_url(url)} can't be reached ({reason}); check the URL, and that its library "
            "(such as s3fs) and its credentials are there"
        ) from error
    return chosen
