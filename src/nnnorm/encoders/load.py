"""Selection of the encoder for a model name, folder or file.

`load_encoder` recognises a checkpoint by the names of its tensors and a folder by its files; any
other name refers to the hub. File names do not matter.
"""

from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from nnnorm.encoders.encoder import Encoder
from nnnorm.encoders.weights import Dtype
from nnnorm.errors import NNNormError, first_line

Library: TypeAlias = Literal[
    "transformers", "sentence-transformers", "open-clip", "albef", "beit3", "blip"
]

_CHECKPOINTS = (".pth", ".pt", ".safetensors")


def load_encoder(
    model: str | Path,
    *,
    library: Library | None = None,
    revision: str | None = None,
    tokenizer: str | Path | None = None,
    image_size: int | None = None,
    device: str = "auto",
    dtype: Dtype = "float32",
    clean_texts: bool = True,
) -> Encoder:
    """Load a model that turns images, texts or sounds into embeddings.

    Parameters
    ----------
    model : str or Path
        A folder of transformers or sentence-transformers; a checkpoint file of ALBEF, BEiT-3 or
        BLIP by its authors (or a folder with one and its vocabulary); a name on the hub; for
        OpenCLIP ``ARCHITECTURE/WEIGHTS`` with ``library="open-clip"``.
    library : str, optional
        ``"transformers"``, ``"sentence-transformers"``, ``"open-clip"``, ``"albef"``, ``"beit3"``
        or ``"blip"``, the latter three for checkpoints of the authors. Needed only if the files do
        not show it.
    revision : str, optional
        Branch, tag or commit, for a name on the hub.
    tokenizer : str or Path, optional
        The ``vocab.txt`` of ALBEF and BLIP or BEiT-3's ``beit3.spm``, if it is not next to the
        checkpoint.
    image_size : int, optional
        For checkpoints of ALBEF, BEiT-3 and BLIP, instead of the size used in training.
    device : str
        ``"auto"`` (a GPU if there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``.
    dtype : {"float32", "bfloat16", "float16"}
        Type of the weights and of the computation; rows are float32 in any case.
    clean_texts : bool
        For BLIP, whose authors clean captions; False encodes them as they are.

    Returns
    -------
    Encoder
        It has ``encode_images``, ``encode_texts`` or ``encode_audio``.

    Examples
    --------
    >>> load_encoder("no/such/folder/model.pth")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: model no/such/folder/model.pth: there is no such file; check the path
    """
    if library is not None and library not in get_args(Library):
        raise NNNormError(f"library must be one of {', '.join(get_args(Library))}; got {library!r}")
    try:
        place: Any = {"device": device, "dtype": dtype}
        encoder = _load(model, library, revision, tokenizer, image_size, clean_texts, place)
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


def _load(
    model: str | Path,
    library: Library | None,
    revision: str | None,
    tokenizer: str | Path | None,
    image_size: int | None,
    clean_texts: bool,
    place: dict[str, Any],
) -> Encoder:
    chosen = library or _recognise(Path(model))
    vocabulary = None if tokenizer is None else Path(tokenizer)
    if not clean_texts and chosen not in ("transformers", "blip"):
        raise NNNormError(f"clean_texts=False (--raw-texts) is for BLIP; got a model of {chosen}")
    if chosen in ("albef", "beit3", "blip"):
        if revision is not None:
            raise NNNormError("revision is for names on the hub; leave it out for a checkpoint")
        path = _find_checkpoint(Path(model))
        sizes: Any = {"vocabulary": vocabulary, "image_size": image_size}
        return _load_checkpoint(chosen, path, sizes, clean_texts, place)
    if vocabulary is not None or image_size is not None:
        raise NNNormError(
            f"tokenizer and image_size are for checkpoints of ALBEF, BEiT-3 and BLIP; a {chosen} "
            "model brings its own"
        )
    if chosen == "open-clip":
        from nnnorm.encoders.openclip import OpenClip

        return OpenClip(str(model), **place)
    if chosen == "sentence-transformers":
        from nnnorm.encoders.sentences import SentenceEncoder

        return SentenceEncoder(str(model), revision=revision, **place)
    from nnnorm.encoders.huggingface import HuggingFace

    return HuggingFace(str(model), revision=revision, clean_texts=clean_texts, **place)


def _load_checkpoint(
    kind: str, path: Path, sizes: dict[str, Any], clean_texts: bool, place: dict[str, Any]
) -> Encoder:
    """Load a checkpoint of a model's authors."""
    if kind == "blip":
        from nnnorm.encoders.blip import read_blip
        from nnnorm.encoders.huggingface import HuggingFace

        parts = read_blip(path, **sizes)
        return HuggingFace(str(path), parts=parts, clean_texts=clean_texts, **place)
    from nnnorm.encoders.albef import Albef
    from nnnorm.encoders.beit3 import Beit3

    return (Albef if kind == "albef" else Beit3)(path, **sizes, **place)


def _recognise(path: Path) -> Library:
    if path.is_dir():
        if (path / "modules.json").is_file():
            return "sentence-transformers"
        if (path / "config.json").is_file():
            return "transformers"
        return _recognise_checkpoint(_find_checkpoint(path))
    if path.exists() or path.suffix in _CHECKPOINTS or len(path.parts) > 2 or path.is_absolute():
        return _recognise_checkpoint(path)
    return "sentence-transformers" if path.parts[0] == "sentence-transformers" else "transformers"


def _find_checkpoint(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = sorted(file for file in path.iterdir() if file.suffix in _CHECKPOINTS)
    if len(found) != 1:
        what = ", ".join(file.name for file in found[:3]) if found else "none"
        raise NNNormError(
            f"{path} is no model folder: expected config.json (transformers), modules.json "
            f"(sentence-transformers) or one checkpoint ({', '.join(_CHECKPOINTS)}); found {what}"
        )
    return found[0]


def _recognise_checkpoint(path: Path) -> Library:
    from nnnorm.encoders.blip import is_blip
    from nnnorm.encoders.weights import read_checkpoint

    if not path.is_file():
        raise NNNormError(f"model {path}: there is no such file; check the path")
    keys = read_checkpoint(path)
    if any(key.startswith("beit3.") for key in keys):
        return "beit3"
    if is_blip(keys):
        return "blip"
    if any(key.startswith("visual_encoder.") for key in keys):
        return "albef"
    raise NNNormError(
        f"checkpoint {path} is neither ALBEF's or BLIP's (visual_encoder.…) nor BEiT-3's "
        f"(beit3.…); its tensors begin with {next(iter(keys), 'nothing')}. A model of "
        "transformers needs its config.json beside it"
    )
