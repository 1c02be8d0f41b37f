"""`nnnorm index`: build, search, verify and export corrected indexes inside engines.

An engine is named by a URL: ``faiss:photos.faiss``, ``sqlite:photos.db?table=photos``,
``qdrant://localhost:6333/photos``.
"""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from nnnorm.cli.app import (
    SOURCE,
    Debug,
    Gallery,
    Json,
    MetricOption,
    Normalize,
    app,
    check_output,
    open_input,
    print_facts,
    print_json,
    print_ranking,
    show_progress,
)
from nnnorm.errors import NNNormError
from nnnorm.index import CorrectedIndex, Way
from nnnorm.io import Progress

index_app = typer.Typer(
    help="The corrected search inside the engine you run.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(index_app, name="index")

_URL = "such as faiss:photos.faiss or sqlite:photos.db?table=photos"
IndexUrl = Annotated[str, typer.Option("--index", help=f"The index: {_URL}.")]
IdsFile = Annotated[
    Path | None, typer.Option(help="Ids of the gallery's rows: .npy or a .json list; else 0…n−1.")
]
WayOption = Annotated[
    Way | None, typer.Option(help="How the correction is served; else the engine's best.")
]
BiasFile = Annotated[Path, typer.Option(help="A file made by `nnnorm fit`.")]
Weight = Annotated[float | None, typer.Option(help="Instead of the bias's weight.")]


@index_app.command(
    epilog="Example: nnnorm index build --gallery photos.npy --bias bias.safetensors "
    "--to faiss:photos.faiss?kind=hnsw"
)
def build(
    gallery: Gallery,
    bias: BiasFile,
    to: Annotated[str, typer.Option(help=f"The new index: {_URL}.")],
    ids: IdsFile = None,
    metadata: Annotated[
        Path | None, typer.Option(help="One JSON object per item: .jsonl, or a .json list.")
    ] = None,
    way: WayOption = None,
    normalize: Normalize = None,
    metric: MetricOption = "ip",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Put a gallery and its bias into an engine."""
    from nnnorm.bias import Bias
    from nnnorm.index import build_index

    loaded = Bias.load(bias)
    items = open_input(gallery, "gallery", normalize, metric)
    named, described = read_ids(ids), _read_metadata(metadata)
    with _long_work("Building") as progress:
        built = build_index(
            to, items, loaded, ids=named, metadata=described, way=way, progress=progress
        )
    _tell(built, as_json)


@index_app.command(
    epilog="Example: nnnorm index search --index faiss:photos.faiss --queries queries.npy -k 10"
)
def search(
    index: IndexUrl,
    queries: Annotated[Path, typer.Option(help=f"Queries: {SOURCE}.")],
    weight: Weight = None,
    k: Annotated[int, typer.Option("-k", "--k", help="Items per query.")] = 10,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write scores and ids as .npz.")
    ] = None,
    normalize: Normalize = None,
    metric: MetricOption = "ip",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Search a corrected index; ids are the items' own."""
    from nnnorm.index import open_index

    if output is not None:
        check_output(output, ".npz", [queries])
    asked = open_input(queries, "queries", normalize, metric)
    with open_index(index) as opened:
        ranking = opened.search(asked, k=k, weight=weight)
        used = opened.recipe.weight if weight is None else weight
    if output is not None:
        ranking.save(output)
    if as_json:
        print_json(
            {
                "n_queries": len(asked),
                "k": k,
                "weight": used,
                "extra_fetches": ranking.extra_fetches,
                "certain": bool(ranking.certain.all()),
                "output": str(output) if output else None,
                "ids": ranking.indices.tolist() if output is None else None,
                "scores": _finite(ranking.scores) if output is None else None,
            }
        )
        return
    print_ranking(ranking, output)
    if ranking.extra_fetches or not ranking.certain.all():
        typer.echo(
            f"The re-rank fetched {ranking.extra_fetches} times more, up to {ranking.n_fetched} "
            f"hits; {int((~ranking.certain).sum())} of {len(asked)} queries are not certain",
            err=True,
        )


@index_app.command(
    epilog="Example: nnnorm index verify --index faiss:photos.faiss --queries queries.npy "
    "--gallery photos.npy --bias bias.safetensors"
)
def verify(
    index: IndexUrl,
    queries: Annotated[Path, typer.Option(help=f"Queries to sample from: {SOURCE}.")],
    gallery: Annotated[
        Path | None, typer.Option(help="What the index should hold; else it is read itself.")
    ] = None,
    bias: Annotated[Path | None, typer.Option(help="The bias of that gallery.")] = None,
    ids: IdsFile = None,
    way: Annotated[
        Way | None, typer.Option(help="Of an index that was filled by hand (augment_gallery).")
    ] = None,
    weight: Weight = None,
    k: Annotated[int, typer.Option("-k", "--k", help="Items per query.", min=1)] = 10,
    sample: Annotated[int, typer.Option(help="Queries to ask.", min=1)] = 200,
    seed: Annotated[int, typer.Option(help="Of that sample.", min=0)] = 0,
    normalize: Normalize = None,
    metric: MetricOption = "ip",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare a live index with the exact corrected search; exit code 1 where they differ."""
    from nnnorm.bias import Bias
    from nnnorm.index import adopt_index, open_index, verify_index

    if (gallery is None) != (bias is None):
        raise NNNormError("--gallery and --bias go together; give both or neither")
    if way is not None and gallery is None:
        raise NNNormError("--way is for an index filled by hand, which needs --gallery and --bias")
    asked = open_input(queries, "queries", normalize, metric)
    items = open_input(gallery, "gallery", normalize, metric) if gallery else None
    loaded = Bias.load(bias) if bias else None
    if way is not None and items is not None and loaded is not None:
        opened = adopt_index(index, items, loaded, way=way)
    else:
        opened = open_index(index)
    with opened:
        result = verify_index(
            opened,
            asked,
            gallery=items,
            bias=loaded,
            ids=read_ids(ids),
            k=k,
            weight=weight,
            sample=sample,
            seed=seed,
        )
        title = f"{opened.store.name}, served by {opened.recipe.way}"
    if as_json:
        print_json(result.to_dict())
    else:
        shown = {f"recall@{k}": result.recall, "largest score error": result.score_error}
        rest = {"queries": result.n_queries, "items": result.n_items}
        print_facts(title, {**shown, **rest, "extra fetches": result.extra_fetches})
        for problem in result.problems:
            typer.echo(f"Likely: {problem}")
        if result.is_good:
            typer.echo("As good as the exact corrected search.")
    if not result.is_good:
        raise typer.Exit(1)


@index_app.command(
    epilog="Example: nnnorm index export --from qdrant://localhost:6333/photos "
    "--to qdrant://localhost:6333/photos_corrected --references past_queries.npy"
)
def export(
    source: Annotated[str, typer.Option("--from", help="The collection as it is; only read.")],
    to: Annotated[str, typer.Option(help="Where the corrected copy goes.")],
    references: Annotated[
        Path | None, typer.Option(help=f"Past queries, to fit the automatic NNN: {SOURCE}.")
    ] = None,
    bias: Annotated[Path | None, typer.Option(help="Instead: a bias of these very items.")] = None,
    ids: Annotated[
        Path | None, typer.Option(help="Ids of the bias's rows: .npy or a .json list; else 0…n−1.")
    ] = None,
    way: WayOption = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a corrected copy of a collection; started again, it goes on where it stopped."""
    from nnnorm.bias import Bias
    from nnnorm.index import export_index

    loaded = Bias.load(bias) if bias else None
    named = read_ids(ids)
    with _long_work("Exporting") as progress:
        done = export_index(
            source,
            to,
            references=references,
            bias=loaded,
            ids=named,
            way=way,
            progress=progress,
        )
    _tell(done, as_json)


# --- files in, facts out ------------------------------------------------------------------------


def read_ids(path: Path | None) -> Any:
    """Ids from a .npy file or a JSON list."""
    import numpy as np

    from nnnorm.io import read_json

    if path is None:
        return None
    if path.suffix == ".json":
        return read_json(path, "a list of ids")
    if not path.is_file():
        raise NNNormError(f"there is no file of ids {path}")
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError) as error:
        raise NNNormError(
            f"{path} can't be read as ids ({error}); expected .npy of whole numbers or strings, or "
            "a .json list"
        ) from error


def _read_metadata(path: Path | None) -> list[dict[str, Any]] | None:
    from nnnorm.io import read_json, read_jsonl

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
    """A progress bar, warnings as notes on stderr, and what Ctrl-C means here."""
    with warnings.catch_warnings(record=True) as caught, show_progress(label) as progress:
        warnings.simplefilter("always", UserWarning)
        try:
            yield progress
        except KeyboardInterrupt:
            raise NNNormError(
                "interrupted; what is written stays: the same command goes on where it stopped"
            ) from None
    for warning in caught:
        typer.echo(f"Warning: {warning.message}", err=True)


def _tell(index: CorrectedIndex, as_json: bool) -> None:
    with index:
        facts = {"index": index.store.name, "n_items": len(index), **index.recipe.to_dict()}
    if as_json:
        print_json(facts)
    else:
        print_facts("Corrected index", facts, skip=("format", "state", "gallery", "metadata"))


def _finite(scores: Any) -> list[list[float | None]]:
    """JSON has no infinity: a place without an item has no score."""
    return [[float(f"{s:.7g}") if s > -math.inf else None for s in row] for row in scores]
