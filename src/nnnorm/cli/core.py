"""The main job on the command line: `fit`, `search` and `info`."""

import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from nnnorm.bank import Bank
from nnnorm.bias import Bias
from nnnorm.cli.app import (
    AllowGalleryRows,
    BiasFile,
    Budget,
    Debug,
    Gallery,
    IdsFile,
    Inputs,
    Json,
    Queries,
    References,
    Weight,
    check_output,
    command,
    number_or_auto,
    print_facts,
    print_json,
    print_ranking,
    read_ids,
    show_progress,
)
from nnnorm.cli.bank import describe_bank
from nnnorm.corrector import Corrector
from nnnorm.dedup import Duplicates, describe_size, describe_unique
from nnnorm.embeddings import open_embeddings
from nnnorm.files import check_regular, kind_of_record
from nnnorm.input_checks import describe_reliability
from nnnorm.methods import (
    METHOD_NAMES,
    GateForm,
    MethodName,
    describe_setting,
    find_method,
    make_method,
)
from nnnorm.ranking import Ranking
from nnnorm.scoring import count_threads
from nnnorm.solvers import Solver
from nnnorm.version import __version__

_TWO_BANKS = [name for name in METHOD_NAMES if find_method(name)[0].gallery_bank != "unused"]
GalleryReferences = Annotated[
    Path | None, Option(help=f"Bank of gallery-side items ({', '.join(_TWO_BANKS)}).")
]
DuplicatesOption = Annotated[
    Duplicates,
    Option(help="Drop near copies among the past queries, or keep every row, as the paper does."),
]


def _users(param: str) -> str:
    """The methods that take a parameter, for the help."""
    found = []
    for name in METHOD_NAMES:
        kind, variant = find_method(name)
        if param not in variant.fixed and param in [part.name for part in fields(kind)]:
            found.append(name)
    return ", ".join(found)


@command("fit --gallery photos.npy --references past_queries.npy -o bias.safetensors")
def fit(
    gallery: Gallery,
    references: References,
    output: Annotated[Path, Option("--output", "-o", help="Where the bias goes.")],
    gallery_references: GalleryReferences = None,
    duplicates: Annotated[
        Duplicates | None,
        Option(
            help="Drop near copies among the past queries (the default for automatic settings) or "
            "keep every row, as the paper does (the default if you give numbers)."
        ),
    ] = None,
    allow_gallery_rows: AllowGalleryRows = False,
    method: Annotated[MethodName, Option(help="How the bias is made.")] = "nnn",
    reference_k: Annotated[
        str | None,
        Option(help=f"References averaged: a number or auto ({_users('reference_k')})."),
    ] = None,
    alpha: Annotated[
        str | None, Option(help=f"Weight: a number or auto ({_users('alpha')}).")
    ] = None,
    center: Annotated[
        bool | None,
        Option(help=f"Take the mean of the gallery from its rows first ({_users('center')})."),
    ] = None,
    weight: Annotated[
        float | None, Option(help=f"Weight of the mean ({_users('weight')}).")
    ] = None,
    beta: Annotated[float | None, Option(help=f"Inverse temperature ({_users('beta')}).")] = None,
    beta_query: Annotated[
        float | None,
        Option(help=f"Inverse temperature of the references ({_users('beta_query')})."),
    ] = None,
    beta_gallery: Annotated[
        float | None,
        Option(help=f"Inverse temperature of the gallery bank ({_users('beta_gallery')})."),
    ] = None,
    gate: Annotated[GateForm | None, Option(help=f"Form of the gate ({_users('gate')}).")] = None,
    tau: Annotated[float | None, Option(help=f"Temperature ({_users('tau')}).")] = None,
    iterations: Annotated[
        int | None, Option(help=f"Balancing steps ({_users('iterations')}).")
    ] = None,
    save_corrector: Annotated[
        Path | None, Option(help="Also write a corrector, for items that arrive later.")
    ] = None,
    recent: Annotated[
        Path | None,
        Option(help="Recent queries of one's own, which join the bank and judge it."),
    ] = None,
    solver: Annotated[
        Solver,
        Option(
            help=f"How the means are computed ({_users('reference_k')}); auto is exact up to about "
            "30 s."
        ),
    ] = "auto",
    quality: Annotated[
        int | None, Option(help="Inverted lists to probe per item (approximate).")
    ] = None,
    *,
    inputs: Inputs,
    memory_budget: Budget = 512,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compute the bias of every gallery item from a bank of past queries."""
    given = {
        "reference_k": number_or_auto("--reference-k", reference_k, int),
        "alpha": number_or_auto("--alpha", alpha, float),
        "center": center,
        "weight": weight,
        "beta": beta,
        "beta_query": beta_query,
        "beta_gallery": beta_gallery,
        "gate": gate,
        "tau": tau,
        "iterations": iterations,
    }
    chosen = make_method(method, **{k: v for k, v in given.items() if v is not None})
    read = [gallery, references, gallery_references, recent]
    options: Any = {
        "gallery_references": gallery_references,
        "duplicates": duplicates,
        "allow_gallery_rows": allow_gallery_rows,
        "solver": solver,
        "quality": quality,
        "memory_budget": memory_budget * 2**20,
    }
    check_output(output, ".safetensors", read)
    if save_corrector is not None:
        check_output(save_corrector, ".safetensors", [*read, output])
    bank = inputs.open_references(references)
    items = inputs.open(gallery, "gallery")
    if gallery_references is not None:
        options["gallery_references"] = inputs.open(gallery_references, "gallery_references")
    own = inputs.open(recent, "recent") if recent else None
    with show_progress("Scoring the gallery against the references") as progress:
        options["progress"] = progress
        if save_corrector is None and own is None:
            bias = chosen.fit(items, bank, **options)
        else:
            corrector = Corrector.fit(items, bank, chosen, recent=own, **options)
            bias = _keep(corrector, save_corrector)
    bias.save(output)
    if not bias.correction.any() and not bias.gates:
        typer.echo(f"Note: nothing will be corrected: {_why_nothing(bias)}", err=True)
    if as_json:
        kept = str(save_corrector) if save_corrector else None
        about = {**bias.to_dict(), **_spread(bias.values), "output": str(output)}
        print_json({**about, "corrector": kept})
        return
    print_facts(*facts_of_bias(bias, output))
    _suggest_next(gallery, output, save_corrector, inputs.repeat())


def _suggest_next(gallery: Path, output: Path, corrector: Path | None, repeated: str) -> None:
    """Print the commands that use what was written."""
    if corrector is not None:
        typer.echo(
            f"\nFor items that arrive later: nnnorm extend --corrector "
            f"{shlex.quote(str(corrector))} --items NEW -o NEW_BIAS",
            err=True,
        )
    typer.echo(
        f"\nNext: nnnorm search --gallery {shlex.quote(str(gallery))} --queries QUERIES "
        f"--bias {shlex.quote(str(output))}{repeated}",
        err=True,
    )


def _keep(corrector: Corrector, path: Path | None) -> Bias:
    """Save a corrector, and return its bias, which names only a corrector that is kept."""
    if path is not None:
        corrector.save(path)
        return corrector.bias
    bias = corrector.bias
    prints = {role: value for role, value in bias.fingerprints.items() if role != "corrector"}
    return replace(bias, fingerprints=prints)


@command("search --gallery photos.npy --queries queries.npy --bias bias.safetensors -k 10")
def search(
    gallery: Gallery,
    queries: Queries,
    bias: BiasFile = None,
    weight: Weight = None,
    k: Annotated[int, Option("-k", "--k", help="Items per query.")] = 10,
    ids: IdsFile = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Write scores and indices as .npz.")
    ] = None,
    *,
    inputs: Inputs,
    memory_budget: Budget = 512,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Search a gallery exactly, corrected by a bias."""
    import nnnorm

    if output is not None:
        check_output(output, ".npz", [gallery, queries, bias, ids])
    loaded = nnnorm.Bias.load(bias) if bias else None
    items = inputs.open(gallery, "gallery")
    asked = inputs.open(queries, "queries")
    named = read_ids(ids)
    with show_progress("Searching") as progress:
        options: Any = {"memory_budget": memory_budget * 2**20, "progress": progress}
        ranking = nnnorm.search(asked, items, loaded, k=k, weight=weight, ids=named, **options)
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
            if ranking.ids is not None:
                about["ids"] = ranking.ids.tolist()
            about["scores"] = [[float(f"{s:.7g}") for s in row] for row in ranking.scores]
        print_json(about)
        return
    print_ranking(ranking, output, corrected=loaded is not None)


@command("info bias.safetensors")
def info(
    file: Annotated[
        Path | None,
        Argument(help="A bias, a bank, a corrector, a ranking, or embeddings; none for versions."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show versions and the active BLAS, or what a file holds."""
    title, about, facts = _installation() if file is None else _describe(file)
    if as_json:
        print_json(about)
    else:
        print_facts(title, facts)


# --- output ------------------------------------------------------------------------------------


def _why_nothing(bias: Bias) -> str:
    if bias.method == "none":
        return "the method is none"
    if bias.params.get("reliability") == 0:
        return (
            f"{bias.n_references:,} references can't tell the hubs of {len(bias):,} items from "
            "noise, so the weight is 0; give more past queries"
        )
    if bias.params.get("match") == 0:
        return (
            "the past queries don't resemble what this gallery is searched for, so the weight is "
            "0; give past queries of this very search"
        )
    return f"the weight is {bias.weight:g}" if bias.weight == 0 else "every item's value is 0"


def facts_of_bias(bias: Bias, path: Path) -> tuple[str, dict[str, str | None]]:
    """Title and facts of a bias for people; `to_dict` has everything for programs."""
    title = f"{path}: a bias for {len(bias):,} items"
    if bias.n_references is not None:
        title += f" from {bias.n_references:,} past queries"
        n_unique = bias.params.get("n_unique", bias.n_references)
        if n_unique != bias.n_references:
            sampled = bias.params.get("references_sampled", False)
            title += f" ({describe_unique(n_unique, sampled)})"
    low, high = float(bias.correction.min()), float(bias.correction.max())
    facts: dict[str, str | None] = {
        "method": find_method(bias.method)[1].label,
        "settings": describe_setting(bias.method, bias.params, between=", ", equals=" = ") or None,
        "correction": f"{low:.3f} to {high:.3f}, {bias.correction.mean():.3f} on average",
    }
    if "past_queries" in bias.params:
        facts["past queries"] = _describe_choice(
            bias.params["past_queries"], bias.params["mismatch_z"]
        )
    if "popularity_weight" in bias.params:
        facts["popularity"] = (
            f"{bias.params['popularity_weight']:g}·log(1 + clicks), of "
            f"{bias.params['n_clicks']:,} clicks"
        )
    if "reliability" in bias.params:
        n_queries = bias.params.get("n_unique", bias.n_references or 0)
        facts["reliability"] = describe_reliability(bias.params["reliability"], n_queries)
    if "density" in bias.params:
        facts["density"] = f"{bias.params['density']:.2f} (agreement with how close items are)"
    if "solver" in bias.params:
        facts["solver"] = _describe_solver(bias.params)
    if bias.gates:
        opened = ", ".join(f"{gate.active.sum():,}" for gate in bias.gates)
        facts["gate"] = f"decides per query; opened by {opened} of the items"
    if bias.dim is not None:
        unit = bias.fingerprints.get("gallery", "").endswith(":unit")
        facts["embeddings"] = f"{bias.dim} dimensions{', normalised' if unit else ''}"
    facts["corrector"] = bias.fingerprints.get("corrector")
    facts["made"] = f"{bias.created[:16].replace('T', ' ')} UTC by nnnorm {bias.version}"
    return title, facts


def _describe_solver(params: Mapping[str, Any]) -> str:
    words = str(params["solver"])
    if "quality" in params:
        words += f", quality {params['quality']}"
    if "error" in params:
        words += f", error {params['error']:.1%} of the standard deviation of the means"
    return words


def _describe_choice(used: str, z: float | None) -> str:
    if z is None:
        return "the recent queries and the references; too few to compare them"
    shown = f"z = {z:.1f}".replace("-", "−")
    if used == "recent":
        return f"the recent queries alone: the references do not match them ({shown})"
    return f"the recent queries and the references, which match them ({shown})"


def _spread(values: Any) -> dict[str, Any]:
    return {
        "values": {
            "mean": float(values.mean()),
            "std": float(values.std()),
            "min": float(values.min()),
            "max": float(values.max()),
        }
    }


def _installation() -> tuple[str, dict[str, Any], dict[str, Any]]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import numpy as np

    def installed(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    libraries = ("numpy", "safetensors", "pyarrow", "torch", "faiss-cpu")
    about = {
        "nnnorm": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": count_threads(),
        "blas": f"{blas['name']} {blas.get('version', '')}".strip(),
        **{library: installed(library) for library in libraries},
    }
    uses = {
        "pyarrow": "parquet files",
        "torch": "--solver torch, cuda, mps",
    }
    facts = {
        name: f"{value} ({uses[name]})" if name in uses else str(value)
        for name, value in about.items()
        if name != "nnnorm"  # it is in the title
    }
    return f"nnnorm {__version__}", about, facts


def _describe(file: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    if file.suffix == ".safetensors" and kind_of_record(file) == "bank":
        bank = Bank.load(file)
        title, facts = describe_bank(bank, file)
        return title, bank.to_dict(), facts
    if file.suffix == ".safetensors":
        if kind_of_record(file) == "corrector":
            return _describe_corrector(file)
        bias = Bias.load(file)
        title, facts = facts_of_bias(bias, file)
        return title, {**bias.to_dict(), **_spread(bias.values)}, facts
    if file.suffix == ".npz":
        names = _names_in(file)
        if {"scores", "indices"} <= names:
            n_queries, k = Ranking.load(file).indices.shape
            title = f"{file}: the {k} best items of {n_queries:,} queries"
            held = "scores, indices and ids" if "ids" in names else "scores and indices"
            about = {"n_queries": n_queries, "k": k, "ids": "ids" in names}
            return title, about, {"arrays": held}
    opened = open_embeddings(file, normalize=False)
    low, high = opened.norm_range
    unit = abs(low - 1) < 0.005 and abs(high - 1) < 0.005
    title = f"{file}: {len(opened):,} embeddings of {opened.dim} dimensions"
    about = {
        "n_rows": len(opened),
        "dim": opened.dim,
        "ids": opened.ids is not None,
        "norms": {"min": low, "max": high},
        "fingerprint": opened.fingerprint,
    }
    meaning = "inner products are cosines" if unit else "for cosine use --normalize"
    ids = None if opened.ids is None else f"one per row, such as {opened.ids[0]}"
    facts = {
        "ids": ids,
        "norms": f"{low:.4g} to {high:.4g}: {meaning}",
        "fingerprint": opened.fingerprint,
    }
    return title, about, facts


def _names_in(file: Path) -> set[str]:
    """Names of the arrays of a .npz file; none where it can't be read, which is said elsewhere."""
    from zipfile import BadZipFile, ZipFile

    check_regular(file)
    try:
        with ZipFile(file) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, ValueError, BadZipFile, NotImplementedError):
        return set()


def _describe_corrector(file: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    corrector = Corrector.load(file)
    bias = corrector.bias
    _, facts = facts_of_bias(bias, file)
    size = describe_size(
        bias.n_references or len(corrector.references),
        len(corrector.references),
        bias.params.get("references_sampled", False),
    )
    title = f"{file}: a corrector with {size}"
    facts["gallery"] = f"{len(bias):,} items"
    if not corrector.unit:
        facts["room"] = f"items with norms up to {corrector.longest:.4g}"
    return title, corrector.to_dict(), facts
