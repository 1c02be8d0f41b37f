"""Selection of the encoder for a model name or folder, by its files."""

from pathlib import Path
from typing import Literal, TypeAlias, get_args

from nnnorm.encoders.encoder import Encoder
from nnnorm.encoders.loading import Dtype
from nnnorm.errors import NNNormError, first_line

Library: TypeAlias = Literal["transformers", "sentence-transformers", "open-clip"]


def load_encoder(
    model: str | Path,
    *,
    library: Library | None = None,
    revision: str | None = None,
    device: str = "auto",
    dtype: Dtype = "float32",
) -> Encoder:
    """Load a model that turns images, texts or sounds into embeddings."""
    if library is not None and library not in get_args(Library):
        raise NNNormError(f"library must be one of {', '.join(get_args(Library))}; got {library!r}")
    chosen = library or _recognize(Path(model))
    try:
        encoder = _load(chosen, str(model), revision, device, dtype)
        if "texts" in encoder.modalities:
            encoder.token_counts(["a text"])  # a damaged tokenizer fails here, not in the work
        return encoder
    except (NNNormError, ImportError, MemoryError):
        raise
    except Exception as error:  # the libraries of models raise any kind, even Exception itself
        raise NNNormError(
            f"the model {model} can't be loaded ({type(error).__name__}: {first_line(error)}); is "
            "one of its files missing, cut short or damaged?"
        ) from error


def _load(library: Library, model: str, revision: str | None, device: str, dtype: Dtype) -> Encoder:
    if library == "open-clip":
        from nnnorm.encoders.openclip import OpenClip

        if revision is not None:
            raise NNNormError("revision is for names on the hub; leave it out for OpenCLIP")
        return OpenClip(model, device=device, dtype=dtype)
    if library == "sentence-transformers":
        from nnnorm.encoders.sentences import SentenceEncoder

        return SentenceEncoder(model, revision=revision, device=device, dtype=dtype)
    from nnnorm.encoders.huggingface import HuggingFace

    return HuggingFace(model, revision=revision, device=device, dtype=dtype)


def _recognize(path: Path) -> Library:
    if path.is_dir():
        if (path / "modules.json").is_file():
            return "sentence-transformers"
        if (path / "config.json").is_file():
            return "transformers"
        raise NNNormError(
            f"{path} isn't a model folder: expected config.json (transformers) or modules.json "
            "(sentence-transformers)"
        )
    if path.is_file():
        raise NNNormError(
            f"{path} is a file; expected a folder with config.json or modules.json, or a name on "
            "the hub"
        )
    if len(path.parts) > 2 or path.is_absolute():
        raise NNNormError(f"model {path}: there is no such folder; check the path")
    return "sentence-transformers" if path.parts[0] == "sentence-transformers" else "transformers"
