"""The commands `fit`, `search`, `bank` and `info`."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import nnnorm
from nnnorm.bank import Bank, describe_times
from nnnorm.bias import Bias
from nnnorm.cli.app import command
from nnnorm.cli.inputs import check_settings, read_groups, read_settings
from nnnorm.cli.output import Answer, Facts, answer_ranking, show_progress
from nnnorm.commands import write_command
from nnnorm.corrector import Corrector
from nnnorm.dedup import describe_unique
from nnnorm.embeddings import open_embeddings
from nnnorm.errors import NNNormError, plural, warn
from nnnorm.files import check_file, kind_of_record
from nnnorm.input_checks import describe_reliability
from nnnorm.methods import MethodName, describe_setting, label_method, list_params, make_method
from nnnorm.ranking import Ranking
from nnnorm.scoring import count_threads
from nnnorm.solvers import Solver
from nnnorm.tables import read_ids
from nnnorm.version import __version__

# Settings for `--set` that all methods share.
_FIT_SETTINGS = (
    *("quality", "allow_gallery_rows", "memory_budget", "between"),
    *("gallery_references", "duplicates"),
)


@command(
    "fit --gallery photos.npy --references past_queries.npy -o bias.safetensors",
    output="Write the bias (.safetensors).",
    settings="Other settings: center=true, duplicates=keep; repeatable.",
)
def fit(
    gallery: Path,
    references: Path,
    output: Path,
    recent: Path | None = None,
    groups: Path | None = None,
    method: MethodName = "nnn",
    reference_k: str | None = None,
    alpha: str | None = None,
    solver: Solver = "auto",
    settings: list[str] | None = None,
    normalize: bool | None = None,
    save_corrector: Path | None = None,
) -> Answer:
    """Compute the bias of every item from past queries."""
    given = read_settings(settings, reference_k=reference_k, alpha=alpha)
    check_settings(given, f"fit --method {method}", (*list_params(method), *_FIT_SETTINGS))
    options: dict[str, Any] = {name: given.pop(name) for name in _FIT_SETTINGS if name in given}
    options |= {"solver": solver, "normalize": normalize, "groups": read_groups(groups)}
    chosen = make_method(method, **given)
    with show_progress("Scoring the gallery against the past queries") as options["progress"]:
        if save_corrector is None and recent is None:
            bias = chosen.fit(gallery, references, **options)
        else:
            corrector = Corrector.fit(gallery, references, chosen, recent=recent, **options)
            bias = corrector.bias
    if save_corrector is not None:
        corrector.save(save_corrector)
    bias.save(output)
    if not bias.correction.any() and not bias.gates:
        warn(f"nothing will be corrected: {_why_nothing(bias)}")
    about = {**_about_bias(bias), "corrector": save_corrector and str(save_corrector)}
    used = {"gallery": gallery, "queries": "QUERIES", "bias": output, "normalize": normalize}
    commands = [write_command("search", used)]
    if save_corrector is not None:
        later = {"corrector": save_corrector, "items": "NEW_ITEMS"}
        later |= {"groups": groups and "NEW_GROUPS", "-o": "new-bias.safetensors"}
        commands.append(write_command("extend", later))
    return Answer(about, [describe_bias(bias, output)], commands)


@command(
    "search --gallery photos.npy --queries queries.npy --bias bias.safetensors -k 10",
    output="Write scores and indices (.npz).",
)
def search(
    gallery: Path,
    queries: Path,
    bias: Path | None = None,
    ids: Path | None = None,
    parents: Path | None = None,
    query_ids: Path | None = None,
    k: int = 10,
    weight: float | None = None,
    min_confidence: float | None = None,
    normalize: bool | None = None,
    output: Path | None = None,
    run_file: Path | None = None,
) -> Answer:
    """Run an exact search, corrected by a bias."""
    if query_ids is not None and run_file is None:
        raise NNNormError("--query-ids needs --run-file; pass both, or leave out --query-ids")
    loaded = Bias.load(bias) if bias else None
    items = open_embeddings(gallery, name="gallery", normalize=normalize)
    asked = open_embeddings(queries, name="queries", normalize=normalize, fingerprint=False)
    options: dict[str, Any] = {"k": k, "weight": weight, "ids": read_ids(ids)}
    options |= {"min_confidence": min_confidence, "parents": read_ids(parents, "parents")}
    with show_progress("Searching") as options["progress"]:
        ranking = nnnorm.search(asked, items, loaded, normalize=normalize, **options)
    about: dict[str, Any] = {"n_gallery": len(items), "k": k, "method": "none", "weight": None}
    if loaded is not None:
        about["method"] = loaded.method
        about["weight"] = loaded.weight if weight is None else weight
    if run_file is not None:
        named = asked.ids if query_ids is None else read_ids(query_ids)
        nnnorm.evaluation.write_run(run_file, ranking, query_ids=named)
    return answer_ranking(ranking, output, about, corrected=loaded is not None)


@command(
    "bank queries.parquet --time asked_at -o bank.safetensors",
    output="Write the bank (.safetensors).",
)
def bank(
    log: Path,
    output: Path,
    column: str = "embedding",
    time: str | None = None,
    count: str | None = None,
    add: bool = False,
    forget_before: str | None = None,
    max_references: int | None = None,
    normalize: bool | None = None,
) -> Answer:
    """Save the unique queries of a log as a bank, or add a log to a bank."""
    fixed: dict[str, Any] = {"max_references": max_references, "normalize": normalize}
    if add and any(value is not None for value in fixed.values()):
        raise NNNormError(
            "--add keeps the --max-references and --normalize of the bank; leave them out, or make "
            "a new bank"
        )
    columns: dict[str, Any] = {"column": column, "times": time, "counts": count}
    with show_progress("Reading the log") as columns["progress"]:
        if add:
            kept = Bank.load(output)
            kept.add(log, **columns)
        else:
            kept = Bank.of(log, **columns, **fixed)
    if forget_before is not None:
        kept.forget(before=forget_before)
    kept.save(output)
    used = {"gallery": "GALLERY", "references": output, "-o": "bias.safetensors"}
    used["normalize"] = kept.normalized or None
    return _answer_bank(kept, output, [] if add else [write_command("fit", used)])


@command("info bias.safetensors")
def info(file: Path | None = None) -> Answer:
    """Show versions and the active BLAS, or what a file contains."""
    return _installation() if file is None else _describe(file)


# --- the contents of a bias, a bank and a corrector ----------------------------------------------


def _about_bias(bias: Bias) -> dict[str, Any]:
    spread = {name: float(getattr(bias.values, name)()) for name in ("mean", "std", "min", "max")}
    return {**bias.to_dict(), "values": spread}


def describe_bias(bias: Bias, path: Path) -> Facts:
    """Return the title and the main facts of a bias."""
    title, params = f"{path}: a bias for {plural(len(bias), 'item')}", bias.params
    if bias.n_references is not None:
        title += f" from {bias.past_queries}"
    spread = bias.correction.min(), bias.correction.max(), bias.correction.mean()
    low, high, mean = (f"{round(float(one), 3) + 0:.3f}".replace("-", "−") for one in spread)
    facts: dict[str, str | None] = {
        "method": label_method(bias.method),
        "settings": describe_setting(bias.method, params, ", ") or None,
        "correction": f"{low} to {high}, {mean} on average",
    }
    if "groups" in params:
        offsets = [f"{name} {offset:+.3f}" for name, offset in params["groups"].items()]
        shown = ", ".join(offsets[:5]) + (f" and {len(offsets) - 5:,} more" if offsets[5:] else "")
        facts["groups"] = f"{shown}; weight between groups {params['between']:g}"
    if "past_queries" in params:
        facts["past queries"] = _describe_choice(params["past_queries"], params["mismatch_z"])
    if "popularity_weight" in params:
        weight, n_clicks = params["popularity_weight"], params["n_clicks"]
        facts["popularity"] = f"{weight:g}·log(1 + clicks), from {n_clicks:,} clicks"
    if "reliability" in params:
        n_used = params.get("n_unique", bias.n_references)
        facts["reliability"] = describe_reliability(params["reliability"], n_used or 0)
    if "solver" in params:
        quality = f", quality {params['quality']}" if "quality" in params else ""
        facts["solver"] = f"{params['solver']}{quality}"
    if "error" in params:
        facts["error"] = f"{100 * params['error']:.1f} % of the standard deviation of the means"
    if bias.gates:
        opened = " and ".join(f"{gate.active.sum():,}" for gate in bias.gates)
        facts["gate"] = f"applies if a query's top-1, uncorrected, is one of {opened} items"
    if bias.dim is not None:
        unit = bias.fingerprints.get("gallery", "").endswith(":unit")
        facts["embeddings"] = f"{bias.dim} dimensions{', normalized' if unit else ''}"
    facts["corrector"] = bias.fingerprints.get("corrector")
    facts["created"] = f"{bias.created[:16].replace('T', ' ')} UTC by nnnorm {bias.version}"
    return Facts(title, facts)


def _why_nothing(bias: Bias) -> str:
    if bias.method == "none":
        return "the method is none"
    if bias.params.get("reliability") == 0:
        return (
            f"{bias.n_references:,} past queries are too few to distinguish the hubs of "
            f"{len(bias):,} items from noise, so the weight is 0; pass more past queries"
        )
    if bias.params.get("match") == 0:
        return (
            "the past queries don't match this gallery, so the weight is 0; pass past queries "
            "from this search"
        )
    return "the weight is 0" if bias.weight == 0 else "every item's value is 0"


def _describe_choice(used: str, z: float | None) -> str:
    if z is None:
        return "all; too few to compare with the recent ones"
    shown = f"z = {z:.1f}".replace("-", "−")
    if used == "recent":
        return f"only the recent ones; the others don't match them ({shown})"
    return f"all; the recent ones match the others ({shown})"


def _answer_bank(bank: Bank, path: Path, commands: list[list[str]] | None = None) -> Answer:
    """Return the facts about a bank."""
    about = bank.to_dict()
    often = int(bank.counts.max())
    facts = {
        "sample": f"random, at most {bank.max_references or 0:,}" if bank.is_sample else None,
        "most asked": f"{often:,} times, {100 * often / bank.n_kept:.1f} % of these queries",
        "embeddings": f"{bank.dim} dimensions{', normalized' if bank.normalized else ''}",
        "last asked": describe_times(bank) or None,
        "forgotten": f"{bank.n_forgotten:,} older queries" if bank.n_forgotten else None,
        "fingerprint": about["fingerprint"],
        "created": f"{about['created'][:16].replace('T', ' ')} UTC",
    }
    title = f"{path}: {describe_unique(len(bank), bank.is_sample)} of {bank.n_kept:,} queries"
    return Answer(about, [Facts(title, facts)], commands or [])


def _answer_corrector(file: Path) -> Answer:
    corrector = Corrector.load(file)
    bias = corrector.bias
    facts = {**describe_bias(bias, file).facts, "gallery": f"{len(bias):,} items"}
    if corrector.calibration is not None:
        n_queries = corrector.calibration.n_queries
        what = "queries, without labels" if corrector.calibration.curve is None else "labels"
        facts["calibration"] = f"from {n_queries:,} {what}"
    if not corrector.unit:
        facts["norms"] = f"items with norms up to {corrector.longest:.4g} can be added"
    shown = Facts(f"{file}: a corrector with {bias.past_queries}", facts)
    return Answer(corrector.to_dict(), [shown])


# --- info ----------------------------------------------------------------------------------------


def _installation() -> Answer:
    import platform
    from importlib.metadata import distributions

    import numpy as np

    installed = {found.name: found for found in distributions()}
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    needed = installed["nnnorm"].requires if "nnnorm" in installed else None
    ours = [one for one in needed or () if not re.search("'(dev|docs)'", one)]
    libraries = [re.split(r"[^\w.-]", one)[0] for one in ours]
    about = {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": count_threads(),
        "blas": f"{blas['name']} {blas.get('version', '')}".strip(),
        **{name: installed[name].version for name in libraries if name in installed},
    }
    shown = Facts(f"nnnorm {__version__}", about)
    return Answer({"nnnorm": __version__, **about}, [shown])


def _describe(file: Path) -> Answer:
    if (file / "CURRENT").exists():
        raise NNNormError(f"{file} is an index; run nnnorm index info URL, such as faiss:{file}")
    if file.suffix == ".safetensors":
        check_file(file)
        if (kind := kind_of_record(file)) == "bank":
            return _answer_bank(Bank.load(file), file)
        if kind == "corrector":
            return _answer_corrector(file)
        bias = Bias.load(file)
        return Answer(_about_bias(bias), [describe_bias(bias, file)])
    if file.suffix == ".npz" and _has_scores(file):
        ranking = Ranking.load(file)
        n_queries, k = ranking.indices.shape
        *most, last = [name for name, array in vars(ranking).items() if array is not None]
        title = f"{file}: the {k} best items of {plural(n_queries, 'query')}"
        about = {"n_queries": n_queries, "k": k, "ids": ranking.ids is not None}
        return Answer(about, [Facts(title, {"arrays": f"{', '.join(most)} and {last}"})])
    return _describe_embeddings(file)


def _has_scores(file: Path) -> bool:
    """Whether a .npz file is a ranking; an unreadable file raises its error later."""
    with suppress(OSError, ValueError, BadZipFile, NotImplementedError):
        if file.is_file():
            with ZipFile(file) as archive:
                return "scores.npy" in archive.namelist()
    return False


def _describe_embeddings(file: Path) -> Answer:
    opened = open_embeddings(file, normalize=False)
    low, high = opened.norm_range
    is_unit = abs(low - 1) < 0.005 and abs(high - 1) < 0.005
    meaning = "inner products are cosines" if is_unit else "for cosines, pass --normalize"
    about = {"n_rows": len(opened), "dim": opened.dim, "fingerprint": opened.fingerprint}
    about |= {"ids": opened.ids is not None, "norms": {"min": low, "max": high}}
    facts = {
        "ids": None if opened.ids is None else f"one per row, such as {opened.ids[0]}",
        "norms": f"{low:.4g} to {high:.4g}: {meaning}",
        "fingerprint": opened.fingerprint,
    }
    title = f"{file}: {len(opened):,} embeddings of {opened.dim} dimensions"
    return Answer(about, [Facts(title, facts)])
