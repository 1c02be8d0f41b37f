"""The command `nnnorm`: arguments in, tables for people or JSON for programs out.

Each command is one short function. Results go to stdout, progress and notes to stderr. A user's
mistake is one sentence and exit code 1, wrong usage exit code 2; a traceback needs `--debug`.
What a command needs beyond the core is imported inside it, so that `--help` answers at once.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nnnorm.embeddings import Embeddings, Metric
from nnnorm.methods import GateForm, MethodName
from nnnorm.scores import Progress
from nnnorm.search import Ranking


class _Group(TyperGroup):
    """Turns our errors into one sentence on stderr and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        from nnnorm.errors import MissingExtraError, NNNormError

        try:
            return super().invoke(ctx)
        except (NNNormError, MissingExtraError, MemoryError, KeyboardInterrupt) as error:
            if ctx.obj == "debug":
                raise
            message = str(error)
            if isinstance(error, KeyboardInterrupt):
                message = "interrupted; nothing was written"
            elif isinstance(error, MemoryError):
                message = f"out of memory ({error}); try a smaller --memory-budget"
            typer.echo(f"Error: {message}", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=_Group,
    help="Make embedding search return the right item instead of the popular one.",
    epilog="A first look: nnnorm demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _remember_debug(ctx: typer.Context, value: bool) -> bool:
    if value:
        ctx.find_root().obj = "debug"
    return value


_SOURCE = ".npy, .npz, .parquet or a folder of shards"
Gallery = Annotated[Path, typer.Option(help=f"Items that are searched: {_SOURCE}.")]
Normalize = Annotated[
    bool, typer.Option("--normalize", help="Divide every row of every input by its norm.")
]
MetricOption = Annotated[
    Metric, typer.Option(help="With cosine, rows must have unit norm (or use --normalize).")
]
Budget = Annotated[int, typer.Option(help="Memory to use beyond the inputs, in MB.", min=1)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error.", callback=_remember_debug)
]


@app.command(
    epilog="Example: nnnorm fit --gallery photos.npy --references past_queries.npy "
    "-o bias.safetensors"
)
def fit(
    gallery: Gallery,
    references: Annotated[Path, typer.Option(help=f"Bank of past queries: {_SOURCE}.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the bias goes.")],
    gallery_references: Annotated[
        Path | None, typer.Option(help="Bank of gallery-side items (dualis, dualdis, sinkhorn).")
    ] = None,
    method: Annotated[MethodName, typer.Option(help="How the bias is made.")] = "nnn",
    reference_k: Annotated[
        str | None, typer.Option(help="References averaged: a number or auto (nnn, csls).")
    ] = None,
    alpha: Annotated[str | None, typer.Option(help="Weight: a number or auto (nnn).")] = None,
    weight: Annotated[float | None, typer.Option(help="λ (dn).")] = None,
    beta: Annotated[float | None, typer.Option(help="Inverse temperature (is, qbnorm).")] = None,
    beta_query: Annotated[
        float | None, typer.Option(help="β of the references (dualis, dualdis).")
    ] = None,
    beta_gallery: Annotated[
        float | None, typer.Option(help="β of the gallery bank (dualis, dualdis).")
    ] = None,
    gate: Annotated[GateForm | None, typer.Option(help="Form of the gate (dualdis).")] = None,
    tau: Annotated[float | None, typer.Option(help="Temperature (sinkhorn).")] = None,
    iterations: Annotated[int | None, typer.Option(help="Balancing steps (sinkhorn).")] = None,
    normalize: Normalize = False,
    metric: MetricOption = "ip",
    memory_budget: Budget = 512,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compute the bias of every gallery item from a bank of past queries."""
    from nnnorm.files import check_writable
    from nnnorm.methods import make_method

    given = {
        "reference_k": _number_or_auto("--reference-k", reference_k, int),
        "alpha": _number_or_auto("--alpha", alpha, float),
        "weight": weight,
        "beta": beta,
        "beta_query": beta_query,
        "beta_gallery": beta_gallery,
        "gate": gate,
        "tau": tau,
        "iterations": iterations,
    }
    chosen = make_method(method, **{k: v for k, v in given.items() if v is not None})
    check_writable(output)
    items = _open(gallery, "gallery", normalize, metric)
    bank = _open(references, "references", normalize, metric)
    gallery_bank = (
        _open(gallery_references, "gallery_references", normalize, metric)
        if gallery_references
        else None
    )
    with _progress("Scoring the gallery against the references") as progress:
        bias = chosen.fit(
            items,
            bank,
            gallery_references=gallery_bank,
            memory_budget=memory_budget * 2**20,
            progress=progress,
        )
    bias.save(output)
    about = {**bias.to_dict(), **_spread(bias.values), "output": str(output)}
    if as_json:
        _print_json(about)
        return
    _print_facts(f"Bias of {len(bias):,} items", about, skip=("n_active",))
    typer.echo(
        f"\nNext: nnnorm search --gallery {gallery} --queries QUERIES --bias {output}", err=True
    )


@app.command(
    epilog="Example: nnnorm search --gallery photos.npy --queries queries.npy "
    "--bias bias.safetensors -k 10"
)
def search(
    gallery: Gallery,
    queries: Annotated[Path, typer.Option(help=f"Queries: {_SOURCE}.")],
    bias: Annotated[Path | None, typer.Option(help="A file made by `nnnorm fit`.")] = None,
    weight: Annotated[float | None, typer.Option(help="Instead of the bias's weight.")] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="Items per query.")] = 10,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write scores and indices as .npz.")
    ] = None,
    normalize: Normalize = False,
    metric: MetricOption = "ip",
    memory_budget: Budget = 512,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Search a gallery exactly, corrected by a bias."""
    import nnnorm
    from nnnorm.files import check_writable

    if output is not None:
        check_writable(output)
    loaded = nnnorm.Bias.load(bias) if bias else None
    items = _open(gallery, "gallery", normalize, metric)
    asked = _open(queries, "queries", normalize, metric)
    with _progress("Searching") as progress:
        ranking = nnnorm.search(
            asked,
            items,
            loaded,
            k=k,
            weight=weight,
            memory_budget=memory_budget * 2**20,
            progress=progress,
        )
    if output is not None:
        ranking.save(output)
    if as_json:
        used = None if loaded is None else loaded.weight if weight is None else weight
        about = {
            "n_queries": len(asked),
            "n_gallery": len(items),
            "k": k,
            "method": loaded.method if loaded else "none",
            "weight": used,
            "output": str(output) if output else None,
        }
        if output is None:
            about["indices"] = ranking.indices.tolist()
            about["scores"] = [[float(f"{s:.7g}") for s in row] for row in ranking.scores]
        _print_json(about)
        return
    _print_ranking(ranking, output)


@app.command(epilog="Example: nnnorm info bias.safetensors")
def info(
    file: Annotated[
        Path | None, typer.Argument(help="A bias, a ranking, or embeddings; none for versions.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show versions and the active BLAS, or what a file holds."""
    title, facts = ("This installation", _installation()) if file is None else _describe(file)
    if as_json:
        _print_json(facts)
    else:
        _print_facts(title, facts)


@app.command(epilog="Example: nnnorm demo")
def demo(as_json: Json = False, debug: Debug = False) -> None:
    """Run the main job on embeddings made on the fly: fit, search, before and after."""
    from nnnorm.demo import run_demo

    result = run_demo()
    if as_json:
        _print_json(result)
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(result["about"], style="dim")
    table = Table(title="The same queries, before and after", title_justify="left")
    for column in ("", "R@1 %", "R@5 %", "R@10 %", "most retrieved item", "items never first"):
        table.add_column(column, justify="left" if column == "" else "right")
    for row in result["rows"]:
        recalls = [f"{row[f'recall_at_{k}']:.1f}" for k in (1, 5, 10)]
        table.add_row(row["search"], *recalls, f"{row['max_n1']} times", f"{row['n_antihubs']}")
    console.print(table)
    console.print(
        f"NNN chose reference_k = {result['params']['reference_k']} and alpha = "
        f"{result['params']['alpha']:.2f} from {result['n_references']:,} past queries, "
        "without labels."
    )
    console.print(
        "\nNow yours:\n"
        "  nnnorm fit --gallery GALLERY.npy --references PAST_QUERIES.npy -o bias.safetensors\n"
        "  nnnorm search --gallery GALLERY.npy --queries QUERIES.npy --bias bias.safetensors",
        highlight=False,
        soft_wrap=True,
    )


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from nnnorm import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line."""
    app(prog_name="nnnorm")


# --- input -------------------------------------------------------------------------------------


def _open(path: Path, name: str, normalize: bool, metric: Metric) -> Embeddings:
    from nnnorm.embeddings import norm_range, open_embeddings

    opened = open_embeddings(path, name=name, normalize=normalize, metric=metric)
    if not normalize and metric == "ip":
        low, high = norm_range(opened)
        if high - low > 0.01:
            typer.echo(
                f"Note: rows of {opened.name} have norms {low:.3g} to {high:.3g}, so scores are "
                "raw inner products; for cosine use --normalize",
                err=True,
            )
    return opened


def _number_or_auto(option: str, text: str | None, kind: type) -> Any:
    if text is None or text == "auto":
        return text
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise typer.BadParameter(f"{text!r} is neither {what} nor 'auto'", param_hint=option) from (
            None
        )


@contextmanager
def _progress(label: str) -> Iterator[Progress | None]:
    """A bar on stderr while that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# --- output ------------------------------------------------------------------------------------


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _print_facts(title: str, facts: Mapping[str, Any], skip: tuple[str, ...] = ()) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in _flat(facts):
        if value is not None and name not in skip:
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            table.add_row(name, shown)
    Console().print(table)


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _print_ranking(ranking: Ranking, output: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    shown, columns = min(10, len(ranking.indices)), min(5, ranking.indices.shape[1])
    table = Table(title="Best items (index, corrected score)", title_justify="left")
    table.add_column("query", justify="right")
    for place in range(columns):
        table.add_column(f"{place + 1}", justify="right")
    for query in range(shown):
        pairs = zip(ranking.indices[query], ranking.scores[query], strict=True)
        cells = [f"{index} [dim]{score:.3f}[/dim]" for index, score in pairs]
        table.add_row(str(query), *cells[:columns])
    Console().print(table)
    n_queries, k = ranking.indices.shape
    if output is not None:
        typer.echo(f"All {n_queries:,} x {k} are in {output}", err=True)
    elif n_queries > shown or k > columns:
        typer.echo(
            f"Shown: {shown} of {n_queries:,} queries, {columns} of {k} places; "
            "-o FILE or --json gives all",
            err=True,
        )


def _spread(values: Any) -> dict[str, Any]:
    return {
        "values": {
            "mean": float(values.mean()),
            "std": float(values.std()),
            "min": float(values.min()),
            "max": float(values.max()),
        }
    }


def _installation() -> dict[str, Any]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import numpy as np

    from nnnorm import __version__
    from nnnorm.threads import count_threads

    def installed(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "nnnorm": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "numpy": np.__version__,
        "blas": f"{blas['name']} {blas.get('version', '')}".strip(),
        "threads": count_threads(),
        "safetensors": installed("safetensors"),
        "extras": {"parquet (pyarrow)": installed("pyarrow")},
    }


def _describe(file: Path) -> tuple[str, dict[str, Any]]:
    from zipfile import is_zipfile

    import numpy as np

    from nnnorm import Bias, Ranking
    from nnnorm.embeddings import norm_range, open_embeddings

    if file.suffix == ".safetensors":
        bias = Bias.load(file)
        return f"Bias {file}", {**bias.to_dict(), **_spread(bias.values)}
    if file.suffix == ".npz" and is_zipfile(file):
        with np.load(file, allow_pickle=False) as archive:
            names = set(archive)
        if {"scores", "indices"} <= names:
            n_queries, k = Ranking.load(file).indices.shape
            return f"Ranking {file}", {"n_queries": n_queries, "k": k}
    opened = open_embeddings(file, name="embeddings")
    low, high = norm_range(opened)
    return f"Embeddings {file}", {
        "n_rows": len(opened),
        "dim": opened.dim,
        "norms": {"min": low, "max": high},
        "fingerprint": opened.fingerprint,
    }
