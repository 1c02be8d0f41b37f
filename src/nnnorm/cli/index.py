"""`nnnorm index`: build, search, change, verify and export corrected indexes inside engines.

A URL names an engine and a collection: ``faiss:photos.faiss``, ``sqlite:photos.db?table=photos``,
``qdrant://localhost:6333/photos``.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from typer import Option

from nnnorm.bias import Bias
from nnnorm.cli.app import (
    SOURCE,
    Debug,
    Gallery,
    HelpfulGroup,
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
from nnnorm.corrector import Corrector
from nnnorm.embeddings import Embeddings, open_embeddings
from nnnorm.errors import NNNormError
from nnnorm.files import Progress
from nnnorm.index import (
    CorrectedIndex,
    Way,
    adopt_index,
    adopt_table,
    build_index,
    export_index,
    open_index,
    verify_index,
)
from nnnorm.methods import METHOD_NAMES, describe_setting, find_method
from nnnorm.popularity import Popularity
from nnnorm.suspects import Suspect
from nnnorm.tables import check_ids, read_json, read_jsonl

index_app = typer.Typer(
    cls=HelpfulGroup,
    help="Run the corrected search inside an existing engine.",
    short_help="Run the corrected search inside an existing engine.",
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
Weight = Annotated[float | None, Option(help="Replaces the weight of the bias; 0 switches it off.")]
BiasFile = Annotated[Path | None, Option(help="Bias of these items, from `nnnorm fit`.")]
CorrectorFile = Annotated[
    Path | None,
    Option(help="Corrector that gives items their bias, from `nnnorm fit --save-corrector`."),
]
MetadataFile = Annotated[
    Path | None, Option(help="Metadata, one JSON object per item: .jsonl or .json.")
]


@command(
    "index build --gallery photos.npy --bias bias.safetensors --to faiss:photos.faiss?kind=hnsw",
    index_app,
)
def build(
    gallery: Gallery,
    to: Annotated[str, Option(help=f"URL of the new index, {_URL}.")],
    bias: BiasFile = None,
    corrector: CorrectorFile = None,
    ids: IdsFile = None,
    metadata: MetadataFile = None,
    way: WayOption = None,
    *,
    inputs: Inputs,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Build an index in an engine from a gallery and its bias, or a corrector."""
    loaded = _load_correction(bias, corrector)
    items = _open_rows(inputs, gallery, "gallery", loaded)
    named, described = read_ids(ids), _read_metadata(metadata)
    with _long_work("Building") as progress:
        built = build_index(
            to, items, loaded, ids=named, metadata=described, way=way, progress=progress
        )
    params = (loaded if isinstance(loaded, Bias) else loaded.bias).params
    _print_index(built, params, as_json, "Built the corrected index")


@command(
    "index add --index faiss:photos.faiss --gallery new.npy --ids new.txt "
    "--corrector corrector.safetensors",
    index_app,
)
def add(
    index: IndexUrl,
    gallery: Annotated[Path, Option(help=f"New items: {SOURCE}.")],
    corrector: CorrectorFile = None,
    bias: BiasFile = None,
    ids: Annotated[
        Path | None,
        Option(help="Ids of the new items: .npy, .json or .txt; by default those of their file."),
    ] = None,
    metadata: MetadataFile = None,
    replace: Annotated[
        bool, Option("--replace", help="Replace items whose ids are in the index already.")
    ] = False,
    admit: Annotated[
        bool,
        Option("--admit", help="Keep out items that look planted or broken, as `nnnorm scan`."),
    ] = False,
    *,
    inputs: Inputs,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Add items to an index; the same command continues where it was interrupted."""
    loaded = _load_correction(bias, corrector)
    described = _read_metadata(metadata)
    with open_index(index) as opened:
        before, named = len(opened), _ids_like(opened, read_ids(ids))
        if admit:
            new = _admit(loaded, gallery, named, described)
        else:
            new = _New(_open_rows(inputs, gallery, "new items", loaded), named, described, None)
        change = opened.upsert if replace else opened.add
        with _long_work("Adding"):
            if new.items is not None:
                change(new.items, loaded, ids=new.ids, metadata=new.metadata)
            opened.save()
        changed: dict[str, Any] = {"added": len(opened) - before}
        if new.kept_out is not None:
            changed["kept out"] = [suspect.to_dict() for suspect in new.kept_out]
        _print_change(opened, as_json, "Added to", changed)


@command("index delete --index faiss:photos.faiss --ids quarantine.txt", index_app)
def delete(
    index: IndexUrl,
    ids: Annotated[Path, Option(help="Ids of the items: .npy, a .json list, or one per line.")],
    missing: Annotated[
        bool, Option("--ignore-missing", help="Leave out ids that the index does not have.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Delete items by their ids, such as those that `nnnorm scan` lists."""
    listed = read_ids(ids)
    with open_index(index) as opened:
        named = _distinct(_ids_like(opened, listed))
        if missing and len(named):
            named = named[opened.store.present(named)]
        if len(named):
            opened.delete(named)
            opened.save()
        _print_change(opened, as_json, "Deleted from", {"deleted": len(named)})


@command(
    "index refresh --index faiss:photos.faiss --corrector corrector.safetensors",
    index_app,
)
def refresh(
    index: IndexUrl,
    corrector: Annotated[
        Path, Option(help="The new corrector, from `nnnorm fit --save-corrector`.")
    ],
    gallery: Annotated[
        Path | None,
        Option(help=f"Original vectors of all items, where the index has few bits: {SOURCE}."),
    ] = None,
    clicks: Annotated[
        Path | None,
        Option(help="Clicks of every item (.npy, or text with one per line): a popularity to add."),
    ] = None,
    popularity_weight: Annotated[
        float | None,
        Option(
            help="Weight of log(1 + clicks); by default that of the index, or 0.02. 0 takes a "
            "popularity off, without --clicks."
        ),
    ] = None,
    ids: Annotated[
        Path | None,
        Option(
            help="Ids of the gallery's rows and of the clicks: .npy, .json or .txt; by default "
            "those of the gallery, or 0…n−1."
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Give all items the bias of another corrector, or new clicks, at once for all readers."""
    loaded, counted = Corrector.load(corrector), read_ids(clicks, "clicks")
    if popularity_weight == 0:
        counted = np.zeros(1)
    if popularity_weight is not None and counted is None:
        raise NNNormError("--popularity-weight is the weight of clicks; give --clicks too")
    with open_index(index) as opened:
        popularity = None
        if counted is not None:
            used = opened.recipe.popularity if popularity_weight is None else popularity_weight
            popularity = Popularity(counted) if used is None else Popularity(counted, used)
        named = _ids_like(opened, read_ids(ids))
        with _long_work("Refreshing") as progress:
            opened.refresh(
                loaded, popularity=popularity, gallery=gallery, ids=named, progress=progress
            )
        changed: dict[str, Any] = {"corrector": opened.recipe.corrector}
        if opened.recipe.popularity is not None:
            changed["popularity weight"] = opened.recipe.popularity
        _print_change(opened, as_json, "Refreshed", changed)


@command("index rollback --index faiss:photos.faiss", index_app)
def rollback(
    index: IndexUrl,
    undo: Annotated[
        bool, Option("--undo", help="Serve the generation of the last refresh, after a rollback.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Serve the generation before the last refresh again; it can be run again after a kill."""
    with open_index(index) as opened:
        opened.rollback(undo=undo)
        done = "Rolled forward" if undo else "Rolled back"
        _print_change(opened, as_json, done, {"corrector": opened.recipe.corrector})


@command("index search --index faiss:photos.faiss --queries queries.npy -k 10", index_app)
def search(
    index: IndexUrl,
    queries: Queries,
    weight: Weight = None,
    k: Annotated[int, Option("-k", "--k", help="Hits per query.")] = 10,
    only: Annotated[
        str | None,
        Option("--filter", help="Which items may come back, in the engine's language."),
    ] = None,
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
    asked = queries if inputs.metric == "ip" else inputs.open(queries, "queries")
    with open_index(index) as opened:
        chosen = None if only is None else opened.store.parse_filter(only)
        ranking = opened.search(
            asked, k=k, weight=weight, filter=chosen, normalize=inputs.normalize
        )
        used = opened.recipe.weight if weight is None else weight
    if output is not None:
        ranking.save(output)
    if as_json:
        print_json(
            {
                "n_queries": len(ranking),
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
            f"{int((~ranking.certain).sum()):,} of {len(ranking):,} queries is not certain",
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
    corrector: Annotated[
        Path | None,
        Option(help="Corrector that the index should have, with or without a gallery."),
    ] = None,
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
    if corrector is None and (gallery is None) != (bias is None):
        raise NNNormError("--gallery and --bias go together; give both or neither")
    if way is not None and (gallery is None or bias is None):
        raise NNNormError("--way is for an index filled by hand, which needs --gallery and --bias")
    asked = queries if inputs.metric == "ip" else inputs.open(queries, "queries")
    loaded = None if bias is None and corrector is None else _load_correction(bias, corrector)
    items = _open_rows(inputs, gallery, "gallery", loaded) if gallery else None
    if way is not None and items is not None and isinstance(loaded, Bias):
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
            normalize=inputs.normalize,
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
            "compared with": f"{result.n_compared:,} vectors of the gallery"
            if result.n_compared
            else "what it holds itself; give --gallery and --bias for what it should hold",
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
    corrector: Annotated[
        Path | None, Option(help="Corrector for these items, instead of --references.")
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
    loaded = None if bias is None and corrector is None else _load_correction(bias, corrector)
    named = read_ids(ids)
    with _long_work("Exporting") as progress:
        done = export_index(
            source, to, references=references, bias=loaded, ids=named, way=way, progress=progress
        )
    params = None
    if loaded is not None:
        params = (loaded if isinstance(loaded, Bias) else loaded.bias).params
    _print_index(done, params, as_json, "Wrote a copy with the correction,")


@command(
    "index adopt --index pgvector://me@localhost/shop?table=photos "
    "--corrector corrector.safetensors",
    index_app,
)
def adopt(
    index: Annotated[
        str, Option("--index", help="URL of a table of the application (PostgreSQL, DuckDB).")
    ],
    corrector: CorrectorFile = None,
    bias: BiasFile = None,
    ids: Annotated[
        Path | None,
        Option(help="Ids of the rows of the bias: .npy or a .json list; by default 0…n−1."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Correct a table in place by one more column; its rows and other columns stay as they are."""
    if ids is not None and bias is None:
        raise NNNormError("--ids names the rows of a bias; give --bias, or leave out --ids")
    loaded = _load_correction(bias, corrector)
    done = adopt_table(index, loaded, ids=read_ids(ids))
    params = (loaded if isinstance(loaded, Bias) else loaded.bias).params
    _print_index(done, params, as_json, "Added the correction as a column to")


# --- files in, facts out ------------------------------------------------------------------------


def _load_correction(bias: Path | None, corrector: Path | None) -> Bias | Corrector:
    if bias is not None and corrector is None:
        return Bias.load(bias)
    if bias is None and corrector is not None:
        return Corrector.load(corrector)
    raise NNNormError(
        "expected either --corrector (nnnorm fit --save-corrector) or --bias (nnnorm fit); got "
        f"{'neither' if bias is None else 'both'}"
    )


def _open_rows(
    inputs: Inputs, path: Path, name: str, correction: Bias | Corrector | None
) -> Embeddings:
    """Open items; a corrector knows whether they are normalised."""
    if isinstance(correction, Corrector) and inputs.normalize is None:
        return open_embeddings(path, name=name, normalize=correction.normalize)
    return inputs.open(path, name)


class _New(NamedTuple):
    """New items; None where all of them are kept out."""

    items: Embeddings | None
    ids: Any
    metadata: list[dict[str, Any]] | None
    kept_out: list[Suspect] | None


def _admit(
    correction: Bias | Corrector, path: Path, ids: Any, metadata: list[dict[str, Any]] | None
) -> _New:
    """Open the rows that the corrector lets in, with what belongs to them."""
    if not isinstance(correction, Corrector):
        raise NNNormError("--admit judges items by the bank of a corrector; give --corrector")
    found = correction.admit(path, ids=ids)
    kept_out = [suspect for suspect in found.suspects if suspect.verdict == "quarantine"]
    kept, n_items = found.kept.tolist(), found.n_items
    if metadata is not None and len(metadata) != n_items:
        raise NNNormError(f"expected metadata of {n_items:,} new items; got {len(metadata):,}")
    if not kept:
        return _New(None, None, None, kept_out)
    sound = correction.open_sound(path, "items")
    rows = sound.embeddings.take(np.searchsorted(sound.rows, found.kept))
    items = open_embeddings(rows, name="new items", normalize=correction.normalize)
    named = None if found.ids is None else [found.ids[row].item() for row in kept]
    described = None if metadata is None else [metadata[row] for row in kept]
    return _New(items, named, described, kept_out)


def _ids_like(index: CorrectedIndex, ids: Any) -> Any:
    """Read ids of a text file as whole numbers where those of the index are."""
    if ids is None or not all(isinstance(own, str) for own in ids):
        return ids
    kept = [own.strip() for own in ids if own.strip()]
    first = next(iter(index.store.scan(1)), None)
    if first is None or first.ids.dtype.kind == "U":
        return kept
    try:
        return [int(own) for own in kept]
    except ValueError:
        return kept  # refused with the kind that they should have


def _distinct(ids: Any) -> Any:
    """Return ids of items to delete, each once; a list may name one twice."""
    array = ids if isinstance(ids, np.ndarray) else np.array(ids, dtype=object)
    if array.ndim == 1:
        if not len(array):
            return array
        with suppress(TypeError):  # of several kinds, which are refused below
            array = np.unique(array)
    return check_ids(array, array.size, name="the items to delete")


def _print_change(index: CorrectedIndex, as_json: bool, done: str, changed: dict[str, Any]) -> None:
    name, n_items = index.store.name, len(index)
    if as_json:
        named = {key.replace(" ", "_"): value for key, value in changed.items()}
        print_json({"index": name, "n_items": n_items, **named})
        return
    facts = {key: _show(value) for key, value in changed.items()}
    print_facts(f"{done} {name}.", {**facts, "items": f"{n_items:,}"})


def _show(value: Any) -> Any:
    if isinstance(value, list):  # of suspects
        listed = "; ".join(f"{one['id']} ({', '.join(one['reasons'])})" for one in value)
        return f"{len(value):,}" + (f": {listed}" if listed else "")
    return f"{value:,}" if isinstance(value, int) else value


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


def _print_index(
    index: CorrectedIndex, params: Mapping[str, Any] | None, as_json: bool, done: str
) -> None:
    with index:
        name, n_items, recipe = index.store.name, len(index), index.recipe
    if as_json:
        print_json({"index": name, "n_items": n_items, **recipe.to_dict()})
        return
    is_known = recipe.method in METHOD_NAMES
    params = {"alpha": recipe.weight} if params is None else params
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
