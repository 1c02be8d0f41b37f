"""What the encoders share: the device, the number type, and errors while a model is loaded."""

import hashlib
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, require

Dtype = Literal["float32", "bfloat16", "float16"]


def pick_device(device: str) -> str:
    """Return the device to compute on; "auto" is a GPU if there is one."""
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


def pick_dtype(dtype: str) -> Any:
    """Return the number type of torch to compute in."""
    if dtype not in get_args(Dtype):
        raise NNNormError(f"dtype must be one of {', '.join(get_args(Dtype))}; got {dtype!r}")
    return getattr(require("torch", "encoders"), dtype)


def check_vocabulary(tokenizer: Any, model: str) -> None:
    """Raise if a tokenizer has no vocabulary, which transformers accepts if files are missing."""
    special = getattr(tokenizer, "all_special_ids", None)  # some tokenizers lack this attribute
    if special is not None and len(tokenizer) <= len(set(special)):
        raise NNNormError(
            f"the tokenizer of model {model} knows no words: its files (tokenizer.json, or a "
            "vocabulary) are missing; is the folder complete?"
        )


def fingerprint_files(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the contents of some files, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        with open(path, "rb") as file:
            while block := file.read(2**22):
                digest.update(block)
    return digest.hexdigest()


@contextmanager
def explain_loading(failed: str, advice: str) -> Iterator[None]:
    """Silence a library while it loads a model, and raise an `NNNormError` for what it raises."""
    library = require("transformers", "encoders").utils.logging
    hub = logging.getLogger("huggingface_hub")  # which logs every attempt to reach it
    before = library.get_verbosity(), library.is_progress_bar_enabled(), hub.level
    library.set_verbosity(library.CRITICAL)
    library.disable_progress_bar()
    hub.setLevel(logging.CRITICAL)
    try:
        yield
    except (NNNormError, MemoryError, ImportError):
        raise
    except Exception as error:  # libraries, the hub and safetensors have kinds of their own
        raise NNNormError(f"{failed} ({first_line(error)}); {advice}") from error
    finally:
        library.set_verbosity(before[0])
        hub.setLevel(before[2])
        if before[1]:
            library.enable_progress_bar()


def list_some(keys: list[str]) -> str:
    """Return the first keys as text."""
    return ", ".join(keys[:3]) + (", …" if len(keys) > 3 else "")


def to_numpy(tensor: Any) -> npt.NDArray[Any]:
    """Convert a tensor of any device to a float32 array."""
    return np.asarray(tensor.detach().float().cpu())
