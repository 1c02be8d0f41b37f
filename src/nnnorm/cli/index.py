"""`nnnorm index`: build, search, verify and export corrected indexes inside engines.

A URL names an engine and a collection: ``faiss:photos.faiss``, ``sqlite:photos.db?table=photos``,
``qdrant://localhost:6333/photos``.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from nnnorm.bias import Bias
from nnnorm.cli.app import (
    SOURCE,
    Debug,
    Gallery,
    Inputs,
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
from nnnorm.index import (
    CorrectedIndex,
    Way,
    adopt_index,
    build_index,
    export_index,
    open_index,
    verify_index,
)
from nnnorm.io import Progress, read_json, read_jsonl
from nnnorm.methods import METHOD_NAMES, describe_setting, find_method

index_app = typer.Typer(
    help="Run the corrected search inside an existing engine.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(index_app, name="index")

_URL = "such as faiss:photos.faiss or sqlite:photos.db?table=photos"
IndexUrl = Annotated[str, Option("--index", help=f"URL of the index, {_URL}.")]
IdsFile = Annotated[
    Path | None,
    Option(help="Ids of the gallery's rows: .npy, .json or .txt; by default its own, or 0…n−1."),
]
WayOption = Annotated[
    Way | None, Option(help="How the correction is served; by default the best way of the engine.")
]
Weight = Annotated[float | None, Option(help="Replaces the weight of the bias.")]


@command(
    "index build --gallery photos.npy --bias bias.safetensors --to faiss:photos.faiss?kind=hnsw",
    index_app,
)
def build(
    gallery: Gallery,
    bias: Annotated[Path, Option(help="Bias of the gallery, from `nnnorm fit`.")],
    to: Annotated[str, Option(help=f"URL of the new index, {_URL}.")],
    ids: IdsFile = None,
    metadata: Annotated[
        Path | None, Option(help="Metadata, one JSON object per item: .jsonl or .json.")
    ] = None,
    way: WayOption = None,
    *,
    inputs: Inputs,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Build an index in an engine from a gallery and its bias."""
    loaded = Bias.load(bias)
    items = inputs.open(gallery, "gallery")
    named, described = read_ids(ids), _read_metadata(metadata)
    with _long_work("Building") as progress:
        built = build_index(
            to, items, loaded, ids=named, metadata=described, way=way, progress=progress
        )
    _print_index(built, loaded, as_json, "Built the corrected index")


@command("index search --index faiss:photos.faiss --queries queries.npy -k 10", index_app)
def search(
    index: IndexUrl,
    queries: Queries,
    weight: Weight = None,
    k: Annotated[int, Option("-k", "--k", help="Hits per query.")] = 10,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Write scores and ids as .npz.")
    ] = None,
    *,
    inputs: Inputs,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Search a corrected index."""
    if output is not None:
        check_output(output, ".npz", [queries])
    asked = inputs.open(queries, "queries")
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
                "ids": ranking.ids.tolist() if output is None else None,
                "scores": _finite(ranking.scores) if output is None else None,
            }
        )
        return
    print_ranking(ranking, output)
    if ranking.extra_fetches or not ranking.certain.all():
        typer.echo(
            f"Note: the re-rank needed {ranking.extra_fetches} further requests and fetched up to "
            f"{ranking.n_fetched:,} hits per query; the ranking of "
            f"{int((~ranking.certain).sum()):,} of {len(asked):,} queries is not certain",
            err=True,
        )


@command(
    "index verify --index faiss:photos.faiss --queries queries.npy --gallery photos.npy "
    "--bias bias.safetensors",
    index_app,
)
def verify(
    index: IndexUrl,
    queries: Annotated[Path, Option(help=f"Queries to sample from: {SOURCE}.")],
    gallery: Annotated[
        Path | None,
        Option(help="What the index should hold; by default what it holds is read from it."),
    ] = None,
    bias: Annotated[Path | None, Option(help="Bias of that gallery.")] = None,
    ids: IdsFile = None,
    way: Annotated[
        Way | None, Option(help="For an index filled with augment_gallery: its target.")
    ] = None,
    weight: Weight = None,
    k: Annotated[int, Option("-k", "--k", help="Hits per query.", min=1)] = 10,
    sample: Annotated[int, Option(help="Number of queries to ask.", min=1)] = 200,
    seed: Annotated[int, Option(help="Random seed of the sample.", min=0)] = 0,
    *,
    inputs: Inputs,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare an index with the exact corrected search; exit code 1 where they differ."""
    if (gallery is None) != (bias is None):
        raise NNNormError("--gallery and --bias go together; give both or neither")
    if way is not None and gallery is None:
        raise NNNormError("--way is for an index filled by hand, which needs --gallery and --bias")
    asked = inputs.open(queries, "queries")
    items = inputs.open(gallery, "gallery") if gallery else None
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
        name, served = opened.store.name, _WAYS[opened.recipe.way]
    if as_json:
        print_json(result.to_dict())
    else:
        verdict = "agrees with" if result.is_good else "differs from"
        facts = {
            f"recall@{k}": f"{result.recall:.4g}",
            "largest score error": f"{result.score_error:.2g}",
            "queries asked": f"{result.n_queries:,}",
            "items": f"{result.n_items:,}",
            "correction": served,
            "further requests": f"{result.extra_fetches:,}" if result.extra_fetches else None,
        }
        print_facts(f"{name} {verdict} the exact corrected search.", facts)
        for problem in result.problems:
            typer.echo(f"Likely cause: {problem}.")
    if not result.is_good:
        raise typer.Exit(1)


@command(
    "index export --from qdrant://localhost:6333/photos "
    "--to qdrant://localhost:6333/photos_corrected --references past_queries.npy",
    index_app,
)
def export(
    source: Annotated[str, Option("--from", help="URL of the existing collection; only read.")],
    to: Annotated[str, Option(help="URL of the corrected copy.")],
    references: Annotated[
        Path | None, Option(help=f"Past queries to fit the automatic NNN on: {SOURCE}.")
    ] = None,
    bias: Annotated[
        Path | None, Option(help="Bias of these items, instead of --references.")
    ] = None,
    ids: Annotated[
        Path | None,
        Option(help="Ids of the rows of the bias: .npy or a .json list; by default 0…n−1."),
    ] = None,
    way: WayOption = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Copy a collection with the correction; an interrupted copy continues when run again."""
    if ids is not None and bias is None:
        raise NNNormError("--ids names the rows of a bias; give --bias, or leave out --ids")
    loaded = Bias.load(bias) if bias else None
    named = read_ids(ids)
    with _long_work("Exporting") as progress:
        done = export_index(
            source, to, references=references, bias=loaded, ids=named, way=way, progress=progress
        )
    _print_index(done, loaded, as_json, "Wrote the corrected copy")


# --- files in, facts out ------------------------------------------------------------------------


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
    """Show progress, and say after Ctrl-C that nothing is lost."""
    with show_progress(label) as progress:
        try:
            yield progress
        except KeyboardInterrupt:
            raise NNNormError(
                "interrupted; what is written stays: the same command continues where it stopped"
            ) from None


_WAYS: dict[Way, str] = {
    "ip": "one extra coordinate, inner product",
    "cosine": "two extra coordinates, cosine",
    "l2": "two extra coordinates, L2 distance",
    "rerank": "hits are re-ranked by a stored number",
    "column": "a column in the engine's own formula",
}


def _print_index(index: CorrectedIndex, bias: Bias | None, as_json: bool, done: str) -> None:
    with index:
        name, n_items, recipe = index.store.name, len(index), index.recipe
    if as_json:
        print_json({"index": name, "n_items": n_items, **recipe.to_dict()})
        return
    is_known = recipe.method in METHOD_NAMES
    params = {"alpha": recipe.weight} if bias is None else bias.params
    setting = describe_setting(recipe.method, params, between=", ", equals=" = ")
    facts = {
        "items": f"{n_items:,}",
        "dimensions": f"{recipe.dim:,} in the embeddings, {recipe.width:,} in the index",
        "correction": _WAYS[recipe.way],
        "method": find_method(recipe.method)[1].label if is_known else recipe.method,
        "settings": setting or f"weight = {recipe.weight:.4g}",
        "range of the bias": f"{recipe.lowest:.4g} to {recipe.highest:.4g}",
        "norms of the items": f"{recipe.shortest:.4g} to {recipe.longest:.4g}",
    }
    print_facts(f"{done} {name}.", facts)


def _finite(scores: Any) -> list[list[float | None]]:
    """Replace infinities, which JSON does not have, by null."""
    return [[float(f"{s:.7g}") if s > -math.inf else None for s in row] for row in scores]
