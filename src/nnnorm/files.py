"""Atomic writes, files that store arrays and metadata, and checks of paths, disk and memory."""

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, causes_of, first_line, keep_interrupts

_STRAY_SECONDS = 3600
# Windows can't replace a file while another process reads it. Seconds to wait between attempts:
_WAITS = (0.01, 0.03, 0.1, 0.3, 1.0) if os.name == "nt" else ()
_FULL = re.compile("(?i)no space left|disk (is )?full|quota exceeded|not enough space")
_NO_NAME = 123  # Windows's error for a pattern such as photos-*.npy, which no file can be named
_LONGEST_NAME = 255  # bytes, in the file systems of Linux, macOS and Windows
# The folder with a container's memory limit (cgroup v2).
_GROUP = "/sys/fs/cgroup"

Record = TypeVar("Record")
PathLike: TypeAlias = str | os.PathLike[str]
Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

# Called with (work done, total work).
Progress: TypeAlias = Callable[[int, int], None]


def check_writable(path: PathLike) -> Path:
    """Return the real path to write to, or raise an error with the reason."""
    target = Path(os.path.realpath(path))
    folder = target.parent
    if os.path.isdir(target):
        problem = "it is a folder; pass a file name inside it"
    elif os.path.lexists(target) and not os.path.isfile(target):
        problem = "it is not a regular file; choose another name"
    elif not os.path.isdir(folder):
        problem = f"the folder {folder} does not exist; create it first"
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = f"no permission to write in {folder}; choose another folder"
    elif len(os.fsencode(target.name)) > _LONGEST_NAME:
        problem = "the file name is too long; choose another name"
    else:
        return target
    raise NNNormError(f"cannot write {path}: {problem}")


def check_regular(path: PathLike, name: str | None = None) -> None:
    """Raise an error for a device or a pipe, which may never end, and if a path can't be used."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # no permission, circular links, not a path at all
        if getattr(error, "winerror", None) == _NO_NAME:
            return
        reason = getattr(error, "strerror", None) or str(error)
        raise NNNormError(f"{name or path}: can't be opened ({reason}); check the path") from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise NNNormError(f"{name or path} is a device, a pipe or a socket; expected a file")


def check_file(path: PathLike, kind: str = "file", hint: str = "check the path") -> None:
    """Raise an error unless a path is a regular file."""
    check_regular(path)
    if os.path.isdir(path):
        raise NNNormError(f"{path} is a folder; expected a {kind}")
    if not os.path.exists(path):
        raise NNNormError(f"there is no {kind} {path}; {hint}")


def make_folder(path: PathLike) -> Path:
    """Create a folder unless it exists; if that fails, raise an error with the reason."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "it is a file" if folder.is_file() else error.strerror
        raise NNNormError(f"cannot make the folder {folder}: {reason}; choose another") from error
    check_writable(folder / "file")
    return folder


@contextlib.contextmanager
def filling(path: PathLike) -> Iterator[Path]:
    """Create a folder if there is none, and remove it again if it stays empty."""
    folder = make_folder(path)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """Yield a new folder, whose content moves to `folder` after all of it is written."""
    with tempfile.TemporaryDirectory(prefix=".nnnorm-", dir=folder) as place:
        yield Path(place)
        for path in Path(place).iterdir():
            if (folder / path.name).is_dir():
                shutil.rmtree(folder / path.name)
            path.replace(folder / path.name)


def write_whole(path: PathLike, write: Callable[[BinaryIO], object]) -> None:
    """Write a temporary file with `write`, then move it to `path`."""
    target = check_writable(path)
    # The name doesn't contain that of the target, which may have the maximum length.
    temporary = target.with_name(f".nnnorm-{secrets.token_hex(8)}.tmp")
    for stray in target.parent.glob(".nnnorm-*.tmp"):  # of killed processes
        with contextlib.suppress(OSError):
            if time.time() - stray.lstat().st_mtime > _STRAY_SECONDS:
                stray.unlink()
    try:
        with open(temporary, "xb") as file, keep_interrupts():
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if os.name == "posix" and target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        _replace(temporary, target)
    except OSError as error:
        reason = "the disk is full" if is_disk_full(error) else error.strerror or error
        raise NNNormError(
            f"cannot write {path}: {reason}; nothing was changed, "
            "free some space or choose another path"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _replace(source: Path, target: Path) -> None:
    for seconds in _WAITS:
        with contextlib.suppress(PermissionError):
            return os.replace(source, target)
        time.sleep(seconds)
    os.replace(source, target)


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error, or one that caused it, is due to a full disk."""
    full = (errno.ENOSPC, errno.EDQUOT)
    found = causes_of(error)
    return any(getattr(one, "errno", None) in full or _FULL.search(str(one)) for one in found)


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Progress]:
    """Show progress on stderr while the block runs; afterwards, the bar disappears."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(label), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def check_space(path: PathLike, needed: int = 2**16) -> None:
    """Raise the error for a full disk if fewer than `needed` bytes are free at a path."""
    there = next(one for one in (Path(path), *Path(path).absolute().parents) if one.exists())
    if shutil.disk_usage(there).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))


def make_mapped(path: PathLike, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Create a `.npy` file of zeros and map it for writing.

    The whole file is allocated here. Otherwise, a full disk would kill the process later, when it
    writes to the map.
    """
    empty = np.empty(0, dtype)
    about = {"descr": np.lib.format.dtype_to_descr(empty.dtype), "fortran_order": False}

    def write(file: BinaryIO) -> None:
        np.lib.format.write_array_header_1_0(file, {**about, "shape": shape})  # type: ignore[no-untyped-call,unused-ignore]
        n_left = math.prod(shape) * empty.itemsize
        if n_left and hasattr(os, "posix_fallocate"):
            file.flush()
            os.posix_fallocate(file.fileno(), file.tell(), n_left)
            return
        while n_left > 0:  # macOS, Windows
            n_left -= file.write(bytes(min(n_left, 2**20)))

    write_whole(path, write)
    return np.lib.format.open_memmap(path, mode="r+")  # type: ignore[no-untyped-call,no-any-return,unused-ignore]


def check_memory(n_bytes: int, name: str) -> None:
    """Raise an error unless an array of this size fits in the available memory."""
    there = available_memory()
    if there is not None and n_bytes > there:
        raise NNNormError(
            f"{name} needs {n_bytes / 1e9:,.1f} GB, but only {there / 1e9:,.1f} GB of memory are "
            "available; is it damaged? If not, save it as .npy, which isn't loaded into memory"
        )


def available_memory() -> int | None:
    """Return the bytes that can be allocated without swapping; None if unknown."""
    found = []
    with contextlib.suppress(OSError, TypeError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        found.append(1024 * int(re.search(r"MemAvailable:\s+(\d+)", text)[1]))  # type: ignore[index]
    # Without a limit, a container has no such file, or its content is "max".
    with contextlib.suppress(OSError, TypeError, ValueError):
        most, used = (int(Path(_GROUP, f"memory.{n}").read_text()) for n in ("max", "current"))
        # The cache of files counts as used memory, but it is dropped when memory is needed.
        text = Path(_GROUP, "memory.stat").read_text(encoding="ascii")
        cached = int(re.search(r"inactive_file (\d+)", text)[1])  # type: ignore[index]
        found.append(max(0, most - used + cached))
    return min(found, default=None)


@contextlib.contextmanager
def reading(name: object, kind: str) -> Iterator[None]:
    """Convert errors of numpy, zipfile, tokenize and pyarrow to an error that names the file."""
    try:
        yield
    except NNNormError:
        raise
    except Exception as error:
        if isinstance(error, ValueError) and "object" in str(error).lower():
            raise NNNormError(
                f"{name} contains Python objects, which nnnorm never unpickles; "
                "save numbers or strings with numpy.save"
            ) from error
        raise NNNormError(
            f"{name} can't be read as {kind} ({first_line(error)}); "
            "is it truncated, or another kind of file?"
        ) from error


def save_record(path: PathLike, kind: str, arrays: Arrays, about: Mapping[str, Any]) -> None:
    """Save arrays and metadata of a kind, such as ``"bias"``; equal content gives equal bytes."""
    from safetensors.numpy import save

    if Path(path).suffix != ".safetensors":  # the suffix must match the content
        raise NNNormError(f"a {kind} is saved as .safetensors; got {path}: choose another suffix")
    dense = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    head = {"format": f"nnnorm.{kind}/1", "digest": _digest_of(dense, about), "about": about}
    # One entry only, because the library writes several ones in random order.
    blob = save(dense, {"nnnorm": json.dumps(head)})
    write_whole(path, lambda file: file.write(blob))


def load_record(
    path: PathLike, kind: str, maker: str, build: Callable[[Arrays, dict[str, Any]], Record]
) -> Record:
    """Load a file of a kind; raise an error if its digest shows that the content has changed."""
    from safetensors import safe_open

    check_file(path, f"{kind} file", f"make one with: {maker}")
    if Path(path).suffix in (".npy", ".npz", ".parquet"):
        raise NNNormError(f"{path} contains embeddings; expected a {kind}: make one with {maker}")
    with reading(path, f"a {kind}"), safe_open(path, framework="numpy") as file:
        head = _read_head(file)
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    other, _, number = head["format"].partition("/")
    if other == kind and number != "1":
        raise NNNormError(f"{path} is a {kind} of format {number}; upgrade nnnorm to read it")
    if other != kind:
        if (other, kind) == ("corrector", "bias"):
            maker = f"nnnorm extend --corrector {path} --items GALLERY -o bias.safetensors"
        what = f"a {other}" if other else "not an nnnorm file"
        raise NNNormError(f"{path} is {what}; expected a {kind}: make one with {maker}")
    reason = "its content changed after it was saved"
    if head.get("digest") == _digest_of(arrays, head.get("about")):
        try:
            return build(arrays, head["about"])
        except NNNormError:
            raise
        except (KeyError, TypeError, ValueError, IndexError) as error:  # a part is missing
            reason = repr(error)
    raise NNNormError(f"{path} is a damaged {kind} file ({reason}); make it again with: {maker}")


def _read_head(file: Any) -> dict[str, Any]:
    """Return the metadata of a file, with its format, ``bias/1``; "" if nnnorm didn't write it."""
    try:
        head = json.loads((file.metadata() or {})["nnnorm"])
        return {**head, "format": head["format"].removeprefix("nnnorm.")}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return {"format": ""}


def kind_of_record(path: PathLike) -> str:
    """Return the kind of a file, such as ``"bias"``; "" if nnnorm didn't write it."""
    from safetensors import SafetensorError, safe_open

    check_regular(path)  # a pipe may never end
    try:
        with safe_open(path, framework="numpy") as file:
            return str(_read_head(file)["format"].partition("/")[0])
    except (SafetensorError, OSError):
        return ""


def _digest_of(arrays: Arrays, about: Any) -> str:
    """Return a digest of all numbers and the metadata, which shows if a file is damaged."""
    digest = hashlib.blake2b(json.dumps(about).encode(), digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
