"""Encodes the missing embeddings of a table, or makes the scores of a model without embeddings.

The inputs are the lists written by `nnnorm dataset`, the output is where `material.py` looks for
it, and interrupted work is resumed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from nnnorm.encoders import (
    Modality,
    encode_to_folder,
    list_files,
    list_texts,
    load_encoder,
    match_to_files,
)
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
        The folders of embeddings, and the files of scores of a model that has only these.

    Examples
    --------
    >>> import tempfile
    >>> encode_missing(EmbeddingFolder(Path(tempfile.mkdtemp())), [], "no model is loaded for this")
    []
    """
    scored = [pair for pair in missing if _has_scores(pair[0])]
    if scored:
        return _match_missing(folder, scored, source, step)
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


def _has_scores(model: str) -> bool:
    """Whether the paper's figures of a model come from scores of pairs."""
    cells = [cell for table in load_paper().tables for cell in table.cells]
    return any(cell.experiment.kind == "scores" for cell in cells if cell.experiment.model == model)


def _match_missing(
    folder: EmbeddingFolder,
    missing: Sequence[tuple[str, str]],
    source: str,
    step: Callable[[str], None] | None,
) -> list[Path]:
    """Match the test images with one caption each, and with the captions of the bank."""
    lists = {}
    for _, dataset in missing:
        images = list_files(folder.file(f"{dataset}-images.txt"))
        lists[dataset] = images, list_texts(folder.file(f"{dataset}-captions.txt"))
    if step is not None:
        step(f"Loading {source}")
    encoder = load_encoder(source)
    made: list[Path] = []
    for model, dataset in missing:
        if step is not None:
            step(f"Matching images and captions of {dataset} with {model}")
        images, captions = lists[dataset]
        test, bank = (folder.part(dataset, part, 0.2) for part in ("test", "references"))
        _, first = np.unique(test.image_of, return_index=True)
        done = match_to_files(
            encoder,
            [images[row] for row in test.images],
            [captions[row] for row in test.captions[first]],
            folder.path(model, dataset),
            references=[captions[row] for row in bank.captions],
            resume=True,
        )
        made += done.files
    return made
