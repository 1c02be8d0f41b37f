"""`nnnorm index`: build, search, change, verify and copy corrected indexes inside engines.

A URL names an engine and a collection: ``faiss:photos``, ``sqlite:photos.db?table=photos``,
``qdrant://localhost:6333/photos``.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from typer import Argument, Option

from nnnorm.bias import Popularity
from nnnorm.cli.app import (
    SOURCE,
    Debug,
    Gallery,
    HelpfulGroup,
    Json,
    Queries,
    app,
    check_output,
    command,
    print_facts,
    print_json,
    print_ranking,
    read_ids,
    show_progress,
)
from nnnorm.errors import NNNormError
from nnnorm.files import Progress
from nnnorm.index import (
    CorrectedIndex,
    Mode,
    build_index,
    copy_index,
    open_index,
    verify_index,
)
from nnnorm.ranking import Ranking
from nnnorm.tables import read_json, read_jsonl

index_app = typer.Typer(
    cls=HelpfulGroup,
    help="Run the corrected search inside an existing engine.",
    short_help="Run the corrected search inside an existing engine.",
    rich_markup_mode=None,
)
app.add_typer(index_app, name="index")

Url = Annotated[str, Argument(help="The index, such as faiss:photos or sqlite:photos.db?table=p.")]
CorrectorFile = Annotated[
    Path, Option(help="Corrector that gives items their bias, from `nnnorm fit --save-corrector`.")
]
MaybeCorrector = Annotated[Path | None, Option(help="Corrector of the index.")]
IdsFile = Annotated[
    Path | None,
    Option(help="Ids of the rows: .npy, .json or .txt; by default those of their file, or 0…n−1."),
]
MetadataFile = Annotated[
    Path | None, Option(help="Metadata, one JSON object per item: .jsonl or .json.")
]
ModeOption = Annotated[
    Mode | None, Option(help="Extra coordinates, or a bias column (SQL); by default the engine's.")
]
Weight = Annotated[
    float | None, Option(help="Replaces the weight of the corrector; 0 switches it off.")
]
Hits = Annotated[int, Option("-k", "--k", help="Hits per query.", min=1)]


@command("index build faiss:photos --gallery photos.npy --corrector c.safetensors", index_app)
def build(
    url: Url,
    gallery: Gallery,
    corrector: CorrectorFile,
    ids: IdsFile = None,
    metadata: MetadataFile = None,
    mode: ModeOption = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Build an index in an engine."""
    named, described = read_ids(ids), _read_metadata(metadata)
    with _long_work("Building") as progress:
        index = build_index(
            url, gallery, corrector, ids=named, metadata=described, mode=mode, progress=progress
        )
    with index:
        _print_info(index, as_json, "Built")


@command("index info faiss:photos", index_app)
def info(url: Url, as_json: Json = False, debug: Debug = False) -> None:
    """Print an index's corrector, version, number of items, and whether rollback is possible."""
    with open_index(url) as index:
        _print_info(index, as_json, "")


@command("index search faiss:photos --queries queries.npy -k 10", index_app)
def search(
    url: Url,
    queries: Queries,
    k: Hits = 10,
    weight: Weight = None,
    only: Annotated[
        str | None, Option("--filter", help="Which items may be returned, as the engine has it.")
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Write scores and ids as .npz.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Search an index."""
    if output is not None:
        check_output(output, ".npz", [queries])
    with open_index(url) as index:
        hits = index.search(queries, k, weight=weight, filter=only)
        used = index.config.weight if weight is None else weight
    ranking = Ranking(hits.scores, hits.ids, hits.ids)
    if output is not None:
        ranking.save(output)
    if as_json:
        listed = {"ids": hits.ids.tolist(), "scores": _finite(hits.scores)} if not output else {}
        saved = str(output) if output else None
        print_json({"n_queries": len(hits), "k": k, "weight": used, "output": saved, **listed})
    else:
        print_ranking(ranking, output)


@command(
    "index add faiss:photos --gallery new.npy --ids new.txt --corrector c.safetensors", index_app
)
def add(
    url: Url,
    gallery: Annotated[Path, Option(help=f"New items: {SOURCE}.")],
    corrector: CorrectorFile,
    ids: IdsFile = None,
    metadata: MetadataFile = None,
    replace: Annotated[
        bool, Option("--replace", help="Replace items whose ids are in the index.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Add items to an index."""
    named, described = read_ids(ids), _read_metadata(metadata)
    with open_index(url, corrector) as index:
        before, change = len(index), index.upsert if replace else index.add
        with _long_work("Adding"):
            change(gallery, ids=_ids_like(index, named), metadata=described)
        _print_change(index, as_json, "Added to", {"added": len(index) - before})


@command("index delete faiss:photos --ids outliers.txt", index_app)
def delete(
    url: Url,
    ids: Annotated[Path, Option(help="Ids of the items: .npy, a .json list, or one per line.")],
    missing: Annotated[
        bool, Option("--ignore-missing", help="Skip ids that the index doesn't have.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Delete items by their ids, such as those that `nnnorm scan` lists."""
    listed = read_ids(ids)
    with open_index(url) as index:
        named = list(dict.fromkeys(_ids_like(index, listed)))
        if missing and named:
            named = [
                own for own, is_there in zip(named, index.present(named), strict=True) if is_there
            ]
        if named:
            index.delete(named)
        _print_change(index, as_json, "Deleted from", {"deleted": len(named)})


@command("index refresh faiss:photos --corrector c.safetensors", index_app)
def refresh(
    url: Url,
    corrector: CorrectorFile,
    clicks: Annotated[
        Path | None,
        Option(help="Clicks of items (.npy, or text with one per line): a popularity to add."),
    ] = None,
    popularity_weight: Annotated[float, Option(help="With --clicks: of log(1 + clicks).")] = 0.02,
    ids: Annotated[
        Path | None, Option(help="With --clicks: their ids, as for `index add`; default 0…n−1.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Give all items the bias of another corrector, in one step for all readers."""
    counted, named = read_ids(clicks, "clicks"), read_ids(ids)
    popularity = None if counted is None else Popularity(counted, popularity_weight)
    with open_index(url) as index:
        with _long_work("Refreshing") as progress:
            index.refresh(
                corrector, popularity=popularity, ids=_ids_like(index, named), progress=progress
            )
        _print_info(index, as_json, "Refreshed")


@command("index rollback faiss:photos", index_app)
def rollback(
    url: Url,
    undo: Annotated[bool, Option("--undo", help="Return to the newer version.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Serve the version before the last refresh again."""
    with open_index(url) as index:
        index.rollback(undo=undo)
        _print_info(index, as_json, "Returned to the newer version of" if undo else "Rolled back")


@command("index verify faiss:photos --queries queries.npy --corrector c.safetensors", index_app)
def verify(
    url: Url,
    queries: Annotated[Path, Option(help=f"Queries to sample from: {SOURCE}.")],
    corrector: MaybeCorrector = None,
    gallery: Annotated[
        Path | None, Option(help="What the index should hold; needs --corrector.")
    ] = None,
    ids: IdsFile = None,
    weight: Weight = None,
    k: Hits = 10,
    sample: Annotated[int, Option(help="Number of queries to ask.", min=1)] = 200,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare an index with the exact corrected search; exit code 1 if they differ."""
    with open_index(url, corrector) as index:
        named = _ids_like(index, read_ids(ids))
        result = verify_index(
            index, queries, gallery=gallery, ids=named, k=k, weight=weight, sample=sample
        )
        name = index.backend.name
    if as_json:
        print_json(result.to_dict())
    else:
        facts = {
            f"recall@{k}": f"{result.recall:.4g}",
            "largest score error": f"{result.score_error:.2g}",
            "queries": f"{result.n_queries:,}",
            "items": f"{result.n_items:,}",
        }
        verdict = "agrees with" if result.is_good else "differs from"
        print_facts(f"{name} {verdict} the exact corrected search.", facts)
        for problem in result.problems:
            typer.echo(f"Problem: {problem}.")
    if not result.is_good:
        raise typer.Exit(1)


@command("index copy qdrant://localhost:6333/photos faiss:photos --references past.npy", index_app)
def copy(
    source: Annotated[str, Argument(help="URL of the existing collection; only read.")],
    target: Annotated[str, Argument(help="URL of the corrected copy.")],
    references: Annotated[
        Path | None, Option(help=f"Past queries to fit a corrector on: {SOURCE}.")
    ] = None,
    corrector: Annotated[
        Path | None, Option(help="Corrector for these items, instead of --references.")
    ] = None,
    mode: ModeOption = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Copy a collection with its ids and metadata, and correct the copy."""
    with _long_work("Copying") as progress:
        made = copy_index(
            source, target, corrector, references=references, mode=mode, progress=progress
        )
    with made:
        _print_info(made, as_json, "Copied to")


# --- files in, facts out -------------------------------------------------------------------------


def _ids_like(index: CorrectedIndex, ids: Any) -> Any:
    """Read ids of a text file as whole numbers if those of the index are."""
    if ids is None or isinstance(ids, np.ndarray):
        return None if ids is None else ids.tolist()
    if not all(isinstance(own, str) for own in ids):
        return ids
    kept = [own.strip() for own in ids if own.strip()]
    if index.config.string_ids:
        return kept
    try:
        return [int(own) for own in kept]
    except ValueError:
        return kept  # rejected with the kind that they should have


def _read_metadata(path: Path | None) -> list[dict[str, Any]] | None:
    if path is None:
        return None
    if path.suffix == ".jsonl":
        return read_jsonl(path)
    entries = read_json(path, "a list of objects")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise NNNormError(f"{path} must hold one JSON object per item")
    return entries


@contextmanager
def _long_work(label: str) -> Iterator[Progress | None]:
    """Show progress, and explain what a Ctrl-C leaves."""
    with show_progress(label) as progress:
        try:
            yield progress
        except KeyboardInterrupt:
            raise NNNormError(
                "interrupted; the index is as it was before: run the command again"
            ) from None


def _print_info(index: CorrectedIndex, as_json: bool, done: str) -> None:
    about = index.info()
    if as_json:
        print_json(asdict(about))
        return
    possible = "yes" if about.can_roll_back else "no"
    if about.is_rolled_back:
        possible = "done; --undo returns to the newer version"
    facts = {
        "items": f"{about.n_items:,}",
        "dimensions": f"{about.dim:,}",
        "version": about.version,
        "corrector": f"{about.corrector} ({about.method}, weight {about.weight:.4g})",
        "mode": about.mode,
        "rollback": possible,
    }
    print_facts(f"{done} {about.name}.".lstrip(), facts)


def _print_change(index: CorrectedIndex, as_json: bool, done: str, changed: dict[str, int]) -> None:
    name, n_items = index.backend.name, len(index)
    if as_json:
        print_json({"index": name, "n_items": n_items, **changed})
    else:
        print_facts(f"{done} {name}.", {**changed, "items": f"{n_items:,}"})


def _finite(scores: Any) -> list[list[float | None]]:
    """Replace infinities, which JSON doesn't have, by null."""
    return [[float(f"{s:.7g}") if s > -math.inf else None for s in row] for row in scores]
