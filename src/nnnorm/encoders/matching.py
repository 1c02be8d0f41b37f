"""Scores of BLIP's matching head on disk, as its authors evaluate: on shortlists, resumable.

The contrastive similarity of every image and text is known after one pass over each. Only the pairs
on a shortlist are matched, and their score is the logit of "match" plus the similarity; all other
pairs score −100. Queries shortlist the items most similar to them, and items the references:

    OUT/test-scores.npy         (n_gallery, n_queries)      the k best items of every query
    OUT/reference-scores.npy    (n_gallery, n_references)   the k best references of every item
    OUT/matching.json           model, direction, shortlist, digests of the inputs
    OUT/matching.partial/       in progress: embeddings, and the scores of finished images

So the k best references of an item are really matched, and NNN's mean over at most k of them is not
one over −100. Images are matched one at a time, whose patches alone are held in memory.
"""

import itertools
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.encoders.blip_matching import BlipMatcher
from nnnorm.encoders.encoder import Encoder, Modality
from nnnorm.encoders.huggingface import HuggingFace
from nnnorm.encoders.pipeline import prepare_ahead
from nnnorm.encoders.shards import digest_contents, digest_items, encode_to_folder
from nnnorm.errors import NNNormError, warn
from nnnorm.io import Embeddings, Progress, make_folder, open_embeddings, write_whole
from nnnorm.scoring import Products, top_k

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]
# What is retrieved: images by texts, or texts by images.
Direction = Literal["image", "text"]

UNMATCHED = -100.0
TEST, REFERENCES, _ABOUT = "test-scores.npy", "reference-scores.npy", "matching.json"
# So many images per stored part: what an interruption can lose.
_PART_IMAGES = 8
# Rows of a finished file are written in blocks of about so many bytes.
_BLOCK_BYTES = 2**26
# The largest k that NNN chooses by itself.
_LARGEST_K = 128


class Matched(NamedTuple):
    """The result of `match_to_files`.

    Attributes
    ----------
    files : list of Path
    about : dict
        The content of ``matching.json``.
    n_resumed : int
        Number of pairs that had been matched already.
    """

    files: list[Path]
    about: dict[str, Any]
    n_resumed: int


class _Job(NamedTuple):
    """Pairs to match, in the order of the images, and the matrix that their scores go to."""

    name: str
    images: Sequence[Any]
    texts: Sequence[str]
    image_of: IntArray
    text_of: IntArray
    similarities: FloatArray

    def parts(self) -> Iterator[slice]:
        """Yield the pairs of a few images at a time."""
        used = np.unique(self.image_of)
        for place in range(0, len(used), _PART_IMAGES):
            ends = used[place], used[min(place + _PART_IMAGES, len(used)) - 1] + 1
            first, last = np.searchsorted(self.image_of, ends)
            yield slice(int(first), int(last))


def match_to_files(
    encoder: Encoder,
    images: Sequence[Any],
    texts: Sequence[str],
    output: str | os.PathLike[str],
    *,
    direction: Direction = "image",
    references: Sequence[Any] | None = None,
    shortlist: int = 256,
    batch_size: int = 32,
    resume: bool = False,
    progress: Progress | None = None,
) -> Matched:
    """Match images with texts by BLIP's matching head, and write the scores to files.

    Parameters
    ----------
    encoder : Encoder
        A BLIP for retrieval, from `load_encoder`.
    images : sequence of paths
    texts : sequence of str
    output : str or PathLike
        Folder for the files.
    direction : {"image", "text"}
        What is retrieved: images by texts, or texts by images. That is the gallery, in rows.
    references : sequence, optional
        Past queries: texts for ``"image"``, images for ``"text"``.
    shortlist : int
        Number of items matched per query, and of references per item. The authors use 256 for COCO
        and 128 for Flickr30k.
    batch_size : int
        Pairs per forward pass.
    resume : bool
        Resume interrupted work; complete files are left as they are.
    progress : callable, optional
        Called with ``(pairs done, pairs in all)``.

    Returns
    -------
    Matched

    Examples
    --------
    >>> match_to_files(Encoder(), ["a.png"], ["a cat"], "out", direction="sound")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: direction must be image or text; got 'sound'
    """
    if direction not in ("image", "text"):
        raise NNNormError(f"direction must be image or text; got {direction!r}")
    if shortlist < 1 or batch_size < 1:
        raise NNNormError(
            f"shortlist and batch_size must be 1 or more; got {shortlist} and {batch_size}"
        )
    if not isinstance(encoder, HuggingFace):
        raise NNNormError(
            f"{encoder.name} has no matching head; expected a BLIP for retrieval, such as "
            "Salesforce/blip-itm-base-coco"
        )
    matcher = BlipMatcher(encoder)
    if references is not None and shortlist < min(len(references), _LARGEST_K):
        warn(
            f"an item is matched with its {shortlist} best references only, and all others score "
            f"{UNMATCHED:g}: use a reference_k of at most {shortlist}, or a longer shortlist"
        )
    folder = Path(output)
    about = _describe(encoder, direction, shortlist, images, texts, references)
    work = _check_folder(folder, about, resume)
    if work is None:
        return Matched(_files(folder, references), about, 0)
    made = [parent for parent in (work, *work.parents) if not parent.exists()]
    try:
        make_folder(work)
        jobs = _plan(encoder, images, texts, references, direction, shortlist, work, batch_size)
    except BaseException:
        _remove_empty(made)
        raise
    # Other pairs are matched for another direction or shortlist.
    parts = make_folder(work / f"{direction}-{shortlist}")
    n_resumed = _run(matcher, jobs, parts, batch_size, progress)
    _deliver(jobs, folder, parts, direction, about)
    shutil.rmtree(work)
    return Matched(_files(folder, references), about, n_resumed)


def _files(folder: Path, references: Sequence[Any] | None) -> list[Path]:
    names = [TEST] if references is None else [TEST, REFERENCES]
    return [folder / name for name in names]


def _describe(
    encoder: Encoder,
    direction: Direction,
    shortlist: int,
    images: Sequence[Any],
    texts: Sequence[str],
    references: Sequence[Any] | None,
) -> dict[str, Any]:
    past = _past_modality(direction)
    past_images = references if references is not None and past == "images" else ()
    about = {
        **encoder.about,
        "direction": direction,
        "shortlist": shortlist,
        "score": "logit of a match plus contrastive similarity on the shortlist, else -100",
        "n_images": len(images),
        "n_texts": len(texts),
        "n_references": None if references is None else len(references),
        "images_sha256": digest_items("images", images),
        "contents_sha256": digest_contents([*images, *past_images]),
        "texts_sha256": digest_items("texts", texts),
        "references_sha256": None if references is None else digest_items(past, references),
    }
    restored: dict[str, Any] = json.loads(json.dumps(about, ensure_ascii=False))
    return restored


def _past_modality(direction: Direction) -> Modality:
    """Return what references are: past queries."""
    return "texts" if direction == "image" else "images"


def _check_folder(folder: Path, about: dict[str, Any], resume: bool) -> Path | None:
    """Return the folder of the work in progress; None if the files are complete already."""
    work = folder / "matching.partial"
    if (folder / TEST).exists():
        if not resume or not (folder / _ABOUT).is_file():
            raise NNNormError(
                f"cannot write {folder / TEST}: it exists; choose another output, or remove it"
            )
        found = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        # With a hash of its weights, the model may have been moved.
        moves = {"model"} if about.get("weights_sha256") is not None else set()
        # Earlier versions did not read the images for this.
        found.setdefault("contents_sha256", about["contents_sha256"])
        changed = [key for key in about if key not in moves and found.get(key) != about[key]]
        if changed:
            key = changed[0]
            what = key.removesuffix("_sha256")
            words = f"another {key}" if what == key else f"other {what}"
            raise NNNormError(
                f"cannot resume {folder / TEST}: it was made with {words} "
                f"({str(found.get(key))[:60]}; now {str(about[key])[:60]}); choose another output, "
                "or remove it"
            )
        return None
    if work.exists() and not resume:
        raise NNNormError(
            f"cannot write {folder / TEST}: interrupted work is there; resume it with --resume, "
            "choose another output, or remove it"
        )
    return work


def _plan(
    encoder: Encoder,
    images: Sequence[Any],
    texts: Sequence[str],
    references: Sequence[Any] | None,
    direction: Direction,
    shortlist: int,
    work: Path,
    batch_size: int,
) -> list[_Job]:
    """Embed all images and texts, and choose the pairs to match."""

    def embed(modality: Modality, items: Sequence[Any], name: str) -> Embeddings:
        options: Any = {"batch_size": batch_size, "resume": True}
        done = encode_to_folder(encoder, modality, items, work / name, **options)
        return open_embeddings(done.folder, name=name, metric="cosine")

    seen, read = embed("images", images, "images"), embed("texts", texts, "texts")
    queries, gallery = (read, seen) if direction == "image" else (seen, read)
    jobs = []
    if references is not None:
        bank = embed(_past_modality(direction), references, "references")
        items, past, similarities = _shortlist(gallery, bank, shortlist)
        if direction == "image":
            jobs.append(_job(REFERENCES, images, references, items, past, similarities))
        else:
            jobs.append(_job(REFERENCES, references, texts, past, items, similarities))
    asked, items, similarities = _shortlist(queries, gallery, shortlist)
    pairs = (items, asked) if direction == "image" else (asked, items)
    # Written last: where the test scores are, the others are too.
    return [*jobs, _job(TEST, images, texts, *pairs, similarities)]


def _shortlist(
    rows: Embeddings, columns: Embeddings, k: int
) -> tuple[IntArray, IntArray, FloatArray]:
    """Return row, column and similarity of the k best columns of every row."""
    best = top_k(Products(rows, columns), min(k, len(columns)))
    row_of = np.repeat(np.arange(len(rows)), best.indices.shape[1])
    return row_of, best.indices.ravel(), best.scores.ravel()


def _job(
    name: str,
    images: Sequence[Any],
    texts: Sequence[str],
    image_of: IntArray,
    text_of: IntArray,
    similarities: FloatArray,
) -> _Job:
    order = np.lexsort((text_of, image_of))
    return _Job(name, images, texts, image_of[order], text_of[order], similarities[order])


def _part_path(parts: Path, job: _Job, place: int) -> Path:
    return parts / f"{job.name.removesuffix('.npy')}_{place:06d}.npy"


def _run(
    matcher: BlipMatcher,
    jobs: Sequence[_Job],
    parts: Path,
    batch_size: int,
    progress: Progress | None,
) -> int:
    """Match the missing pairs; return the number of those that had been matched already."""
    total, done, n_resumed = sum(len(job.image_of) for job in jobs), 0, 0
    for job in jobs:
        missing = []
        for place, pairs in enumerate(job.parts()):
            path = _part_path(parts, job, place)
            if path.exists():
                n_resumed += pairs.stop - pairs.start
            else:
                missing.append((path, pairs))
        done = max(done, n_resumed)
        used = [np.unique(job.image_of[pairs]) for _, pairs in missing]
        items = [job.images[image] for some in used for image in some]
        single = [(place, place + 1) for place in range(len(items))]
        with closing(prepare_ahead(matcher.encoder, "images", items, single)) as ahead:
            for (path, pairs), some in zip(missing, used, strict=True):
                scores = []
                for image in some:
                    first, last = np.searchsorted(job.image_of[pairs], [image, image + 1])
                    there = slice(pairs.start + int(first), pairs.start + int(last))
                    asked = [job.texts[text] for text in job.text_of[there]]
                    (pixels,) = next(ahead)
                    logits = matcher.match(pixels, asked, batch_size=batch_size)
                    scores.append(logits + job.similarities[there])
                    done += len(asked)
                    if progress is not None:
                        progress(done, total)
                write_whole(path, partial(np.save, arr=np.concatenate(scores), allow_pickle=False))
    return n_resumed


def _deliver(
    jobs: Sequence[_Job], folder: Path, parts: Path, direction: Direction, about: dict[str, Any]
) -> None:
    """Write the matrices from their parts."""
    text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
    write_whole(folder / _ABOUT, lambda file: file.write(text.encode("utf-8")))
    if all(job.name != REFERENCES for job in jobs):  # else those of earlier work would stay
        (folder / REFERENCES).unlink(missing_ok=True)
    for job in jobs:
        scores = np.concatenate(
            [np.load(_part_path(parts, job, place)) for place, _ in enumerate(job.parts())]
        )
        rows, columns = job.image_of, job.text_of
        shape = len(job.images), len(job.texts)
        if direction == "text":
            rows, columns, shape = columns, rows, shape[::-1]
        write_whole(folder / job.name, partial(write_sparse, shape, rows, columns, scores))


def write_sparse(
    shape: tuple[int, int], rows: IntArray, columns: IntArray, scores: FloatArray, file: BinaryIO
) -> None:
    """Write a ``.npy`` matrix that is −100 but for some pairs, in blocks of rows.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO()
    >>> write_sparse((2, 2), np.array([1]), np.array([0]), np.array([0.5], np.float32), file)
    >>> _ = file.seek(0)
    >>> np.load(file).tolist()
    [[-100.0, -100.0], [0.5, -100.0]]
    """
    about = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    order = np.argsort(rows, kind="stable")
    rows, columns, scores = rows[order], columns[order], scores[order]
    step = max(1, _BLOCK_BYTES // (4 * shape[1]))
    for start, stop in itertools.pairwise([*range(0, shape[0], step), shape[0]]):
        block = np.full((stop - start, shape[1]), UNMATCHED, dtype="<f4")
        here = slice(*np.searchsorted(rows, [start, stop]))
        block[rows[here] - start, columns[here]] = scores[here]
        file.write(block.tobytes())


def _remove_empty(folders: Sequence[Path]) -> None:
    for place in folders:
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()
