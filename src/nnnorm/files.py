"""Files written whole or not at all, records of arrays and JSON in one file, and their checks."""

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, keep_interrupts

# Most file systems bound a name at 255 bytes; the rest is for what is added, such as a suffix.
_LONGEST_NAME = 200
_STRAY_SECONDS = 3600
# Folders that were searched for leftovers already; once per process is enough.
_TIDIED: set[Path] = set()
# The folder of a container's memory limit (cgroup v2).
_GROUP = "/sys/fs/cgroup"
# Control characters, lone surrogates, and what Windows refuses.
_NOT_IN_A_NAME = re.compile(r'[\x00-\x1f\x7f<>:"|?*\ud800-\udfff]')

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

# User and password; up to the last @, since a password may hold one.
_USER = re.compile(r"//\S*@")
_SECRET = re.compile(r"(?i)(\w*(?:pass|token|secret|key)\w*\s*=\s*)('[^']*'|[^\s&]+)")

# Called with (work done, work in all).
Progress: TypeAlias = Callable[[int, int], None]


def safe_name(name: object, otherwise: str = "unnamed") -> str:
    """Reduce a name that comes from data to a file name without any folder."""
    last = re.split(r"[/\\]", str(name).rstrip("/\\"))[-1]
    kept = _NOT_IN_A_NAME.sub("_", last).encode()[:_LONGEST_NAME].decode(errors="ignore")
    return kept.lstrip(". ").rstrip(". ") or otherwise


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Return the real path to write to, or raise an error that says why it can't be written."""
    target = Path(os.path.realpath(path))
    folder = target.parent
    try:
        mode = target.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = stat.S_IFREG
    except OSError as error:  # no permission to look, a name too long, links in a circle
        raise NNNormError(f"cannot write {path}: {error.strerror}; choose another place") from error
    if stat.S_ISDIR(mode):
        problem = "it is a folder; give a file name inside it"
    elif not stat.S_ISREG(mode):
        problem = "it is not a regular file; choose another name"
    elif not folder.is_dir():
        problem = f"the folder {folder} does not exist; create it first"
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = f"no permission to write in {folder}; choose another folder"
    else:
        return target
    raise NNNormError(f"cannot write {path}: {problem}")


def check_regular(path: str | os.PathLike[str], name: str | None = None) -> None:
    """Raise for what is there but is no regular file: a pipe or a device may never end."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # no permission, links in a circle, not a path at all
        reason = getattr(error, "strerror", None) or str(error)
        raise NNNormError(f"{name or path}: can't be opened ({reason}); check the path") from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise NNNormError(
            f"{name or path} is a device, a pipe or a socket; expected a file on disk"
        )


def _remove_strays(folder: Path) -> None:
    """Remove temporary files of killed processes, which have not been written to for an hour."""
    if folder in _TIDIED:
        return
    _TIDIED.add(folder)
    for stray in folder.glob(".nnnorm-*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - stray.lstat().st_mtime > _STRAY_SECONDS:
                stray.unlink()


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Create a folder for several files if there is none, or raise an error that says why not."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "it is a file" if folder.is_file() else error.strerror
        raise NNNormError(
            f"cannot make the folder {folder}: {reason}; choose another place"
        ) from error
    check_writable(folder / "file")
    return folder


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Write a temporary file with `write` and then move it to `path`."""
    target = check_writable(path)
    # Not derived from the name of the target, which may have the maximum length already.
    temporary = target.with_name(f".nnnorm-{secrets.token_hex(8)}.tmp")
    _remove_strays(target.parent)
    try:
        with open(temporary, "xb") as file, keep_interrupts():
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        os.replace(temporary, target)
    except OSError as error:
        raise NNNormError(
            f"cannot write {path}: {error.strerror or error}; nothing was changed, "
            "free some space or choose another place"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def check_memory(n_bytes: int, name: str) -> None:
    """Raise unless an array of this size fits in the memory that is available."""
    there = available_memory()
    if there is not None and n_bytes > there:
        raise NNNormError(
            f"{name} announces {n_bytes / 1e9:,.1f} GB, more than the {there / 1e9:,.1f} GB of "
            "memory that are available; is it damaged? Embeddings of that size are read from .npy "
            "files, which are not loaded"
        )


def available_memory() -> int | None:
    """Bytes that can be allocated without swapping; None if the system does not tell."""
    found = []
    with contextlib.suppress(OSError, TypeError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        found.append(1024 * int(re.search(r"MemAvailable:\s+(\d+)", text)[1]))  # type: ignore[index]
    # A container has no such group if there is no limit, or "max".
    with contextlib.suppress(OSError, TypeError, ValueError):
        most, used = (int(Path(_GROUP, f"memory.{n}").read_text()) for n in ("max", "current"))
        # Files that were read count as used, but are dropped when memory is needed.
        text = Path(_GROUP, "memory.stat").read_text(encoding="ascii")
        cached = int(re.search(r"inactive_file (\d+)", text)[1])  # type: ignore[index]
        found.append(max(0, most - used + cached))
    return min(found, default=None)


def unreadable(name: object, kind: str, error: BaseException) -> NNNormError:
    """The error for a file that another library can't read."""
    return NNNormError(
        f"{name} can't be read as {kind} ({first_line(error)}); "
        "is it cut short, or another kind of file?"
    )


def save_record(
    path: str | os.PathLike[str], kind: str, arrays: Arrays, about: Mapping[str, Any]
) -> None:
    """Write a record of a kind, such as ``"bias"``."""
    from safetensors.numpy import save

    if Path(path).suffix != ".safetensors":  # what the name says is what is in the file
        raise NNNormError(f"a {kind} is saved as .safetensors; got {path}: choose another ending")
    dense = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps(about)
    metadata = {"format": f"nnnorm.{kind}/1", kind: text, "digest": _digest_of(dense, text)}
    blob = memoryview(save(dense, metadata))
    n_header = 8 + int.from_bytes(blob[:8], "little")
    header = _sort_metadata(bytes(blob[8:n_header]))
    length = len(header).to_bytes(8, "little")
    write_whole(path, lambda file: file.writelines([length, header, blob[n_header:]]))


def _sort_metadata(header: bytes) -> bytes:
    """Bring the metadata of a safetensors header, which is in random order, into one order."""
    entries = json.loads(header)
    entries["__metadata__"] = dict(sorted(entries["__metadata__"].items()))
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * (-len(text) % 8)  # the numbers behind it are aligned


def load_record(
    path: str | os.PathLike[str], kind: str, maker: str
) -> tuple[Arrays, dict[str, Any]]:
    """Read arrays and description of a record; its digest shows that they are those saved."""
    metadata, arrays = _read_record(path, kind, maker)
    expected = f"nnnorm.{kind}/1"
    if metadata.get("format") != expected:
        raise NNNormError(
            f"{path} is a safetensors file but holds no {kind} of this format ({expected}); "
            f"it says {metadata.get('format', 'nothing')!r}"
        )
    text = metadata.get(kind, "")
    if metadata.get("digest") != _digest_of(arrays, text):
        raise damaged(path, kind, maker, "its numbers are not those that were saved")
    return arrays, json.loads(text)


def kind_of_record(path: str | os.PathLike[str]) -> str | None:
    """The kind that a file says it is; None if it is no record of this package."""
    try:
        metadata, _ = _read_record(path, "record", "nnnorm", arrays=False)
    except NNNormError:
        return None
    package, _, kind = metadata.get("format", "").partition(".")
    return kind.partition("/")[0] if package == "nnnorm" else None


def damaged(
    path: str | os.PathLike[str], kind: str, maker: str, reason: Exception | str
) -> NNNormError:
    """The error for a record that lacks a part, or has another."""
    shown = reason if isinstance(reason, str) else repr(reason)
    return NNNormError(f"{path} is a damaged {kind} file ({shown}); make it again with: {maker}")


def _digest_of(arrays: Arrays, text: str) -> str:
    """Digest of all numbers and the description, by which a damaged file is noticed."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _read_record(
    path: str | os.PathLike[str], kind: str, maker: str, *, arrays: bool = True
) -> tuple[dict[str, str], Arrays]:
    from safetensors import SafetensorError, safe_open

    check_regular(path)
    if os.path.isdir(path):
        raise NNNormError(f"{path} is a folder; expected a {kind} file (.safetensors)")
    if not os.path.exists(path):
        raise NNNormError(f"there is no {kind} file {path}; make one with: {maker}")
    try:
        with safe_open(path, framework="numpy") as file:
            names = file.keys() if arrays else ()
            return file.metadata() or {}, {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise unreadable(path, f"a {kind}", error) from error


def show_url(url: object) -> str:
    """Write a URL or an address without user, password and keys, for messages and facts."""
    return _SECRET.sub(r"\1…", _USER.sub("//…@", str(url)))


def hide_secrets(text: str, address: str, *others: str | None) -> str:
    """Remove the password of an address, and other secrets, from what an engine's library says."""
    found = _USER.search(address)
    _, _, password = (found.group()[2:-1] if found else "").partition(":")
    for secret in (password, unquote(password), *others):
        if secret:
            text = text.replace(secret, "…")
    return show_url(text)
