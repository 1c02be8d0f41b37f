"""Writing files whole or not at all.

The bytes go to a temporary file beside the target, which replaces the target only once everything
is on disk. An error, a full disk or Ctrl-C leaves the old file (or no file), never half a file.
Targets that are not regular files (folders, devices, pipes) are refused before anything is written.
"""

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from nnnorm.errors import NNNormError, keep_interrupts

# Most file systems bound a name at 255 bytes; the rest is for what is added, such as a suffix.
_LONGEST_NAME = 200
_YOUNG_SECONDS = 5
# Folders that were searched for leftovers already; once per process is enough.
_TIDIED: set[Path] = set()
# Where a container's memory limit is (cgroup v2).
_GROUP = "/sys/fs/cgroup"
# Control characters, lone surrogates, and what Windows refuses.
_NOT_IN_A_NAME = re.compile(r'[\x00-\x1f\x7f<>:"|?*\ud800-\udfff]')


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
        raise NNNormError(f"cannot write {path}: it is a folder; give a file name inside it")
    if not stat.S_ISREG(mode):
        raise NNNormError(f"cannot write {path}: it is not a regular file; choose another name")
    if not folder.is_dir():
        raise NNNormError(
            f"cannot write {path}: the folder {folder} does not exist; create it first"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise NNNormError(
            f"cannot write {path}: no permission to write in {folder}; choose another folder"
        )
    return target


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


def _lock(file: BinaryIO) -> bool:
    """Mark a file as in use until it is closed or its process ends; False where it is already."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):  # another system, or a file system without locks
        return False
    return True


def _remove_strays(folder: Path) -> None:
    """Remove temporary files of killed processes; those of running ones are locked."""
    if folder in _TIDIED:
        return
    _TIDIED.add(folder)
    for stray in folder.glob(".nnnorm-*.tmp"):
        # What was created a moment ago may not be locked yet.
        with contextlib.suppress(OSError):
            if stray.is_symlink() or time.time() - stray.stat().st_mtime < _YOUNG_SECONDS:
                continue
            with open(stray, "rb") as file:
                if _lock(file):
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
            _lock(file)
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
    """Bytes that can be allocated without swapping; None where the system does not tell."""
    found = [_free_memory(), _room_in_group()]
    return min((n_bytes for n_bytes in found if n_bytes is not None), default=None)


def _free_memory() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return 1024 * int(re.search(r"MemAvailable:\s+(\d+)", text)[1])  # type: ignore[index]
    except (OSError, TypeError):
        if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return None


def _room_in_group() -> int | None:
    """Bytes left below the limit of a container; None if there is no limit."""
    try:
        most, used = (
            int(Path(_GROUP, f"memory.{name}").read_text()) for name in ("max", "current")
        )
        # Files that were read count as used, but are dropped when memory is needed.
        text = Path(_GROUP, "memory.stat").read_text(encoding="ascii")
        return max(0, most - used + int(re.search(r"inactive_file (\d+)", text)[1]))  # type: ignore[index]
    except (OSError, TypeError, ValueError):  # no such group, or "max"
        return None
