"""Shared by the torch encoders: the device, and safe reading of checkpoints.

A checkpoint is read as tensors only (`weights_only`, or safetensors), and no code in it is run. Its
keys and shapes are compared with those that the model needs before anything is computed; a
checkpoint with a missing or unknown key is refused, and the key is named.
"""

import argparse
import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from nnnorm.errors import NNNormError, first_line, require

Tensor: TypeAlias = Any
State: TypeAlias = Mapping[str, Tensor]
Dtype = Literal["float32", "bfloat16", "float16"]

_SHOWN = 3


def pick_device(device: str) -> str:
    """Return the device to compute on; ``"auto"`` is a GPU if there is one.

    Examples
    --------
    >>> pick_device("cpu")
    'cpu'
    """
    torch = require("torch", "encoders")
    if device == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        raise NNNormError(
            f"device {device!r} can't be used here ({first_line(error)}); "
            "try auto, cpu, cuda, cuda:1 or mps"
        ) from error
    return device


def pick_dtype(dtype: str, device: str) -> Any:
    """Return the number type of torch to compute in, if the device can compute in it.

    Examples
    --------
    >>> pick_dtype("bfloat16", "cpu")
    torch.bfloat16
    >>> pick_dtype("float8", "cpu")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: dtype must be one of float32, bfloat16, float16; got 'float8'
    """
    torch = require("torch", "encoders")
    if dtype not in get_args(Dtype):
        raise NNNormError(f"dtype must be one of {', '.join(get_args(Dtype))}; got {dtype!r}")
    chosen = getattr(torch, dtype)
    if dtype == "float32":
        return chosen
    try:  # what the models are made of
        functional = torch.nn.functional
        with torch.inference_mode():
            pixels = torch.zeros(1, 3, 8, 8, device=device, dtype=chosen)
            rows = functional.conv2d(pixels, pixels).flatten(1) @ pixels[0, 0, :1]
            functional.layer_norm(functional.gelu(rows), rows.shape[1:]).softmax(-1).float().cpu()
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        raise NNNormError(
            f"device {device} can't compute in {dtype} ({first_line(error)}); use float32"
        ) from error
    return chosen


def free_memory(device: str) -> None:
    """Give back the memory that torch keeps for later.

    Examples
    --------
    >>> free_memory("cpu")
    """
    kind = device.partition(":")[0]
    if kind != "cpu" and hasattr(getattr(require("torch", "encoders"), kind, None), "empty_cache"):
        getattr(require("torch", "encoders"), kind).empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out; torch raises a RuntimeError for it.

    Examples
    --------
    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    True
    >>> is_out_of_memory(RuntimeError("shapes do not fit"))
    False
    """
    words = r"out of memory|(can't|cannot) allocate memory|not enough memory"
    return isinstance(error, MemoryError) or re.search(words, str(error), re.I) is not None


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Read a state dict from ``.pth``, ``.pt``, ``.bin`` or ``.safetensors``, as tensors only.

    A state dict may be stored under ``model`` or ``module``, next to an optimiser and the arguments
    of the training run, which are ignored.

    Examples
    --------
    >>> read_checkpoint(Path("nowhere.pth"))
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: checkpoint nowhere.pth: there is no such file; check the path
    """
    torch = require("torch", "encoders")
    if not path.is_file():
        raise NNNormError(f"checkpoint {path}: there is no such file; check the path")
    try:
        if path.suffix == ".safetensors":
            found = require("safetensors.torch", "encoders").load_file(path)
        else:
            # The arguments of a run are a Namespace of plain values, the only object allowed.
            with torch.serialization.safe_globals([argparse.Namespace]):
                found = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # pickle, zipfile, torch and safetensors have kinds of their own
        # Not quoted: torch's message advises a way of loading that runs code of the file.
        raise NNNormError(
            f"checkpoint {path} can't be read as tensors; is it cut short, or another kind of "
            "file? One that holds other objects is never unpickled: save its state dict alone"
        ) from error
    for place in ("model", "module", "state_dict"):
        if isinstance(found, Mapping) and isinstance(found.get(place), Mapping):
            found = found[place]
            break
    if not isinstance(found, Mapping) or not all(torch.is_tensor(t) for t in found.values()):
        raise NNNormError(f"checkpoint {path} holds no state dict (names with tensors)")
    return dict(found)


def check_keys(
    state: State, expected: Mapping[str, tuple[int, ...]], unused: Iterable[str], name: str
) -> None:
    """Raise unless all expected tensors are there in their shapes, and no unknown ones are.

    Parameters
    ----------
    state : mapping of str to tensor
        What the checkpoint holds.
    expected : mapping of str to shape
        What the model computes with.
    unused : iterable of str
        Regular expressions of keys that belong to the model's other jobs.
    name : str
        What messages call the checkpoint.

    Examples
    --------
    >>> check_keys({}, {"head.weight": (2, 2)}, [], "a.pth")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: a.pth lacks 1 of the 1 tensors this model needs: head.weight; ...
    """
    missing = [key for key in expected if key not in state]
    known = re.compile("|".join(unused) or r"(?!)")
    unknown = [key for key in state if key not in expected and not known.fullmatch(key)]
    if missing:
        besides = f" (and has {len(unknown)} unknown: {list_some(unknown)})" if unknown else ""
        raise NNNormError(
            f"{name} lacks {len(missing)} of the {len(expected)} tensors this model needs: "
            f"{list_some(missing)}{besides}; is it a checkpoint of another kind or task?"
        )
    if unknown:
        raise NNNormError(
            f"{name} has {len(unknown)} tensors this model does not know: {list_some(unknown)}; "
            "is it a checkpoint of another kind or task?"
        )
    for key, shape in expected.items():
        if tuple(state[key].shape) != shape:
            raise NNNormError(
                f"{name}: {key} must have shape {shape}; got {tuple(state[key].shape)}"
            )


def resize_positions(positions: Tensor, n_extra: int, side: int) -> Tensor:
    """Resize a table of position embeddings to another grid (bicubic, as in the authors' code).

    Parameters
    ----------
    positions : tensor, shape (n_extra + grid * grid, width)
        The first `n_extra` rows belong to no patch and are kept.
    side : int
        Patches along one side of the new grid.

    Examples
    --------
    >>> import torch
    >>> resize_positions(torch.ones(1 + 4, 8), n_extra=1, side=3).shape
    torch.Size([10, 8])
    """
    torch = require("torch", "encoders")
    extra, patches = positions[:n_extra], positions[n_extra:]
    old = round(len(patches) ** 0.5)
    if old == side:
        return positions
    grid = patches.reshape(1, old, old, -1).permute(0, 3, 1, 2)
    grid = torch.nn.functional.interpolate(
        grid, size=(side, side), mode="bicubic", align_corners=False
    )
    return torch.cat([extra, grid.permute(0, 2, 3, 1).flatten(1, 2)[0]])


def check_vocabulary(tokenizer: Any, model: str) -> None:
    """Raise if a tokenizer has no vocabulary, which transformers accepts if files are missing.

    Examples
    --------
    >>> class Empty:
    ...     all_special_ids = [0, 1]
    ...
    ...     def __len__(self):
    ...         return 2
    >>> check_vocabulary(Empty(), "clip")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: the Tokenizer of model clip knows no words: ...
    """
    special = getattr(tokenizer, "all_special_ids", None)  # some tokenizers lack this attribute
    if special is not None and len(tokenizer) <= len(set(special)):
        raise NNNormError(
            f"the Tokenizer of model {model} knows no words: its files (tokenizer.json, or a "
            "vocabulary) are not there; is the folder whole?"
        )


def fingerprint_files(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the contents of some files, in the order of their names.

    Examples
    --------
    >>> fingerprint_files([])[:8]
    'e3b0c442'
    """
    digest = hashlib.sha256()
    for path in sorted(paths):
        with open(path, "rb") as file:
            while block := file.read(2**22):
                digest.update(block)
    return digest.hexdigest()


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Silence progress bars and log lines of transformers and of the hub while a model is loaded.

    The hub's library logs every attempt to reach it; the error that follows says it once.

    Examples
    --------
    >>> with quiet_loading():
    ...     logging.getLogger("huggingface_hub.utils").warning("Retrying in 1s [Retry 1/5].")
    """
    library = require("transformers", "encoders").utils.logging
    hub = logging.getLogger("huggingface_hub")
    verbosity, had_bar, level = (
        library.get_verbosity(),
        library.is_progress_bar_enabled(),
        hub.level,
    )
    library.set_verbosity(library.CRITICAL)
    library.disable_progress_bar()
    hub.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        library.set_verbosity(verbosity)
        hub.setLevel(level)
        if had_bar:
            library.enable_progress_bar()


@contextmanager
def explain_loading(failed: str, advice: str) -> Iterator[None]:
    """Raise an `NNNormError` for whatever a library raises while it loads a model.

    Examples
    --------
    >>> with explain_loading("model a can't be loaded", "check the path"):
    ...     raise KeyError("config")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: model a can't be loaded ('config'); check the path
    """
    try:
        yield
    except (MemoryError, ImportError):
        raise
    except Exception as error:  # libraries, the hub and safetensors have kinds of their own
        raise NNNormError(f"{failed} ({first_line(error)}); {advice}") from error


def list_some(keys: list[str]) -> str:
    """Return the first keys as text.

    Examples
    --------
    >>> list_some(["a", "b", "c", "d"])
    'a, b, c, …'
    """
    return ", ".join(keys[:_SHOWN]) + (", …" if len(keys) > _SHOWN else "")
