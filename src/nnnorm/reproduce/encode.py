"""Encodes the missing embeddings of a table.

The inputs are the lists written by `nnnorm dataset`, the output is where `material.py` looks for
it, and interrupted work is resumed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from nnnorm.encoders import Modality, encode_to_folder, list_files, list_texts, load_encoder
from nnnorm.errors import NNNormError
from nnnorm.reproduce.material import EmbeddingFolder
from nnnorm.reproduce.paper import PaperTable, load_paper
from nnnorm.reproduce.tables import list_material


def find_missing(
    folder: EmbeddingFolder, tables: Sequence[PaperTable], short: str
) -> list[tuple[str, str]]:
    """List the data sets that some tables need and that a model has not encoded yet.

    Parameters
    ----------
    folder : EmbeddingFolder
    tables : sequence of PaperTable
    short : str
        The folder name of the model, such as "clip".

    Returns
    -------
    list of (model, dataset)

    Examples
    --------
    >>> import tempfile
    >>> from nnnorm.reproduce.paper import find_tables
    >>> folder = EmbeddingFolder(Path(tempfile.mkdtemp()))
    >>> find_missing(folder, find_tables(["gender"]), "clip")
    [('CLIP', 'visogender'), ('CLIP', 'coco')]
    """
    models = load_paper().models
    if short not in models.values():
        raise NNNormError(
            f"the paper has no model {short!r}; its models are: {', '.join(models.values())}"
        )
    kinds = {
        cell.experiment.kind
        for table in load_paper().tables
        for cell in table.cells
        if models[cell.experiment.model] == short
    }
    if "scores" in kinds:
        raise NNNormError(
            f"{short} has no embeddings, only scores of pairs; make its two score files yourself "
            "(docs/reproduce.md)"
        )
    needed = {pair: None for table in tables for pair in list_material(table)}
    return [pair for pair in needed if models[pair[0]] == short and not folder.has(*pair)]


def encode_missing(
    folder: EmbeddingFolder,
    missing: Sequence[tuple[str, str]],
    source: str,
    *,
    step: Callable[[str], None] | None = None,
) -> list[Path]:
    """Encode the images and captions of some data sets.

    Parameters
    ----------
    folder : EmbeddingFolder
    missing : sequence of (model, dataset)
        From `find_missing`, all of one model.
    source : str
        The model as in `nnnorm encode`: a folder, a checkpoint or a name on the hub.
    step : callable, optional
        Called with a description of each step.

    Returns
    -------
    list of Path
        The folders of embeddings.

    Examples
    --------
    >>> import tempfile
    >>> encode_missing(EmbeddingFolder(Path(tempfile.mkdtemp())), [], "no model is loaded for this")
    []
    """
    # The same lists as in `nnnorm encode`, so that either can resume the work of the other.
    lists: dict[tuple[tuple[str, str], Modality], Sequence[Path | str]] = {}
    for pair in missing:
        lists[pair, "images"] = list_files(folder.file(f"{pair[1]}-images.txt"))
        lists[pair, "texts"] = list_texts(folder.file(f"{pair[1]}-captions.txt"))
    if not lists:
        return []
    if step is not None:
        step(f"Loading {source}")
    encoder = load_encoder(source)
    made = []
    for (pair, modality), items in lists.items():
        if step is not None:
            step(f"Encoding {modality} of {pair[1]} with {pair[0]}")
        done = encode_to_folder(encoder, modality, items, folder.path(*pair), resume=True)
        made.append(done.folder)
    return made
