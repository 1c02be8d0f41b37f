"""`nnnorm index`: build, search, change, verify and copy corrected indexes inside engines.

A URL names an engine and a collection: ``faiss:photos``, ``sqlite:photos.db?table=photos``,
``qdrant://localhost:6333/photos``.
"""

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import typer

from nnnorm.bias import Popularity
from nnnorm.cli.app import COMMANDS, HelpfulGroup, app, command
from nnnorm.cli.inputs import read_groups
from nnnorm.cli.options import Line
from nnnorm.cli.output import Answer, Facts, answer_ranking, name_options, show_progress
from nnnorm.errors import NNNormError
from nnnorm.index import CorrectedIndex, build_index, copy_index, open_index, verify_index
from nnnorm.ranking import Ranking
from nnnorm.tables import read_ids, read_objects

index_app = typer.Typer(cls=HelpfulGroup, help=COMMANDS["index"][1], rich_markup_mode=None)
app.add_typer(index_app, name="index")

_GROUPS = "Groups of the items: a file, or a key of --metadata."
_GROUPS_KEY = "Metadata key with each item's group."
_LEFT = "the index is unchanged: run the command again"


def _read_items(
    ids: Path | None = None, metadata: Path | None = None, groups: str | None = None
) -> dict[str, Any]:
    """Read ids, metadata and groups; `groups` is a file, or a key of the metadata."""
    is_file = groups is not None and (Path(groups).is_file() or ":" in groups)
    return {
        "ids": read_ids(ids),
        "metadata": None if metadata is None else read_objects(metadata),
        "groups": read_groups(Path(str(groups))) if is_file else groups,
    }


@command(
    "index build faiss:photos --gallery photos.npy --corrector c.safetensors",
    index_app,
    like=_read_items,
    groups=_GROUPS,
)
def build(url: str, gallery: Path, corrector: Path, **known: Any) -> Answer:
    """Store a gallery with its bias in an engine."""
    options = _read_items(**known)
    with show_progress("Building", _LEFT) as options["progress"]:
        index = build_index(url, gallery, corrector, **options)
    with index:
        return _describe(index, "Built")


@command("index info faiss:photos", index_app)
def info(url: str) -> Answer:
    """Show an index's corrector, version, number of items and rollback state."""
    with open_index(url) as index:
        return _describe(index)


@command(
    "index search faiss:photos --queries queries.npy -k 10",
    index_app,
    output="Write scores and ids (.npz).",
    parents=Line("Input", "Metadata key with each chunk's document.", "KEY"),
)
def search(
    url: str,
    queries: Path,
    k: int = 10,
    weight: float | None = None,
    min_confidence: float | None = None,
    only: str | None = None,
    parents: str | None = None,
    output: Path | None = None,
) -> Answer:
    """Search an index."""
    options: dict[str, Any] = {"weight": weight, "min_confidence": min_confidence}
    with open_index(url) as index:
        hits = index.search(queries, k, filter=only, parents=parents, **options)
        used = index.config.weight if weight is None else weight
    ranking = Ranking(hits.scores, hits.ids, hits.ids, hits.confidence, hits.parents)
    return answer_ranking(ranking, output, {"k": k, "weight": used})


@command(
    "index add faiss:photos --gallery new.npy --ids new.txt --corrector c.safetensors",
    index_app,
    like=_read_items,
    gallery="New items: .npy, .npz, .parquet or a folder.",
    groups=_GROUPS,
)
def add(url: str, gallery: Path, corrector: Path, replace: bool = False, **known: Any) -> Answer:
    """Add items to an index."""
    options = _read_items(**known)
    with open_index(url, corrector) as index:
        before, change = len(index), index.upsert if replace else index.add
        left = _LEFT if index.backend.atomic_writes else "add the rest with --replace"
        with show_progress("Adding", left):
            change(gallery, **{**options, "ids": _ids_like(index, options["ids"])})
        return _describe_change(index, "Added to", {"added": len(index) - before})


@command("index delete faiss:photos --ids outliers.txt", index_app)
def delete(url: str, ids: Path, ignore_missing: bool = False) -> Answer:
    """Delete items by their ids, such as those that `nnnorm scan` lists."""
    listed = read_ids(ids)
    with open_index(url) as index:
        named = list(dict.fromkeys(_ids_like(index, listed)))
        if ignore_missing and named:
            present = zip(named, index.present(named), strict=True)
            named = [own for own, is_there in present if is_there]
        if named:
            index.delete(named)
        return _describe_change(index, "Deleted from", {"deleted": len(named)})


@command(
    "index refresh faiss:photos --corrector c.safetensors",
    index_app,
    groups=_GROUPS_KEY,
    ids="With --clicks: ids of the items; default: 0, 1, 2, ...",
)
def refresh(
    url: str,
    corrector: Path,
    groups: str | None = None,
    clicks: Path | None = None,
    ids: Path | None = None,
    popularity_weight: float | None = None,
) -> Answer:
    """Replace the bias of all items by that of another corrector, in one atomic step."""
    counted, named = read_ids(clicks, "clicks"), read_ids(ids)
    if counted is None and (named is not None or popularity_weight is not None):
        raise NNNormError("--ids and --popularity-weight need --clicks; pass it, or leave them out")
    weight = 0.02 if popularity_weight is None else popularity_weight
    options: dict[str, Any] = {"groups": groups}
    options["popularity"] = None if counted is None else Popularity(counted, weight)
    with open_index(url) as index, show_progress("Refreshing", _LEFT) as progress:
        index.refresh(corrector, ids=_ids_like(index, named), progress=progress, **options)
        return _describe(index, "Refreshed")


@command("index rollback faiss:photos", index_app)
def rollback(url: str, undo: bool = False) -> Answer:
    """Return to the version before the last refresh."""
    with open_index(url) as index:
        before = index.config.version
        index.rollback(undo=undo)
        done = "Returned to the newer version of" if undo else "Rolled back"
        return _describe(index, done if index.config.version != before else "Unchanged:")


@command(
    "index verify faiss:photos --queries queries.npy --corrector c.safetensors",
    index_app,
    gallery="With --corrector: items the index should have.",
)
def verify(
    url: str,
    queries: Path,
    corrector: Path | None = None,
    gallery: Path | None = None,
    ids: Path | None = None,
    k: int = 10,
) -> Answer:
    """Compare an index with the exact search; exit code 1 if they differ."""
    with open_index(url, corrector) as index:
        named = _ids_like(index, read_ids(ids))
        result = verify_index(index, queries, gallery=gallery, ids=named, k=k)
        name = index.backend.name
    facts = {
        f"recall@{k}": f"{result.recall:.3f}",
        "largest score error": f"{result.score_error:.2g}",
        "queries, 200 at most": f"{result.n_queries:,}",
        "items": f"{result.n_items:,}",
    }
    verdict = "agrees with" if result.is_good else "differs from"
    shown = Facts(f"{name} {verdict} the exact corrected search.", facts)
    problems = [f"Problem: {name_options(problem)}." for problem in result.problems]
    return Answer(result.to_dict(), [shown, *problems], code=0 if result.is_good else 1)


@command(
    "index copy qdrant://localhost:6333/photos faiss:photos --references past.npy",
    index_app,
    references="Past queries to fit a corrector on.",
    corrector="Corrector for these items, instead of --references.",
    groups=_GROUPS_KEY,
)
def copy(
    source: str,
    target: str,
    references: Path | None = None,
    corrector: Path | None = None,
    groups: str | None = None,
) -> Answer:
    """Copy a collection with its ids and metadata, and correct the copy."""
    options: dict[str, Any] = {"references": references, "groups": groups}
    with show_progress("Copying", _LEFT) as options["progress"]:
        made = copy_index(source, target, corrector, **options)
    with made:
        return _describe(made, "Copied to")


# --- reading ids, describing an index -----------------------------------------------------------


def _ids_like(index: CorrectedIndex, ids: Any) -> Any:
    """Convert ids of a text file to whole numbers, if those of the index are."""
    if isinstance(ids, np.ndarray):
        return ids.tolist()
    if ids is None or not all(isinstance(own, str) for own in ids):
        return ids
    kept = [own for own in ids if own.strip()]
    with suppress(ValueError):  # text stays text, which the index rejects
        return kept if index.config.string_ids else [int(own) for own in kept]
    return kept


def _describe(index: CorrectedIndex, done: str = "") -> Answer:
    about = index.info()
    possible = "yes" if about.can_roll_back else "no"
    if about.is_rolled_back:
        possible = "done; --undo returns to the newer version"
    weight = f"weight {about.weight:.4g}"
    if about.alpha not in (None, about.weight):
        weight = f"alpha {about.alpha:.4g} within groups"
    facts = {
        "items": f"{about.n_items:,}",
        "dimensions": f"{about.dim:,}",
        "version": about.version,
        "corrector": f"{about.corrector} ({about.method}, {weight})",
        "mode": about.mode,
        "rollback": possible,
    }
    return Answer(asdict(about), [Facts(f"{done} {about.name}.".lstrip(), facts)])


def _describe_change(index: CorrectedIndex, done: str, changed: dict[str, int]) -> Answer:
    name, n_items = index.backend.name, len(index)
    shown = Facts(f"{done} {name}.", {**changed, "items": f"{n_items:,}"})
    return Answer({"index": name, "n_items": n_items, **changed}, [shown])
