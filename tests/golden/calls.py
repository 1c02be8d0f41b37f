"""Public calls on fixed data, whose results must not change: `tests/golden/test_golden.py`.

Every function returns numbers, texts, lists or arrays. `golden.json` holds what they returned when
the third automatic rule landed. If a result changes for a reason, record it again with
`python -m tests.golden.record NAME` and say why in the commit.
"""

import atexit
import functools
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

import nnnorm
from nnnorm import augmentation, evaluation

CALLS: dict[str, Callable[[Path], Any]] = {}


def golden(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    CALLS[function.__name__] = function
    return function


def unit(*shape: int, seed: int, shift: float = 0.3) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=shape) + shift
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


GALLERY, REFERENCES, QUERIES = unit(120, 24, seed=1), unit(400, 24, seed=2), unit(40, 24, seed=3)
ITEMS, NEW = unit(90, 24, seed=4), unit(7, 24, seed=5)
TRUTH = np.arange(40)


def shapes():
    return nnnorm.load_shapes()


def some(values: Any, n: int = 12) -> list[float]:
    """The first values and the mean: enough to notice a change."""
    values = np.asarray(values, dtype=float).ravel()
    return [*values[:n].tolist(), float(values.mean())]


def bias_for(method, **options):
    bias = method.fit(GALLERY, REFERENCES, **options)
    top = nnnorm.search(QUERIES, GALLERY, bias, k=5).indices
    return {"values": some(bias.values), "weight": bias.weight, "top": top[:6].tolist()}


# --- methods -------------------------------------------------------------------------------------

METHODS = {
    "uncorrected": nnnorm.methods.Uncorrected(),
    "nnn_automatic": nnnorm.NNN(),
    "nnn_paper": nnnorm.NNN.paper(),
    "nnn_numbers": nnnorm.NNN(reference_k=16, alpha=0.5),
    "nnn_centered": nnnorm.NNN(reference_k=16, alpha=0.5, center=True),
    "nnn_k": nnnorm.NNN(reference_k=16),
    "nnn_alpha": nnnorm.NNN(alpha=0.25),
    "csls": nnnorm.CSLS(),
    "dn": nnnorm.DN(),
    "inverted_softmax": nnnorm.InvertedSoftmax(),
    "qbnorm": nnnorm.InvertedSoftmax(gated=True),
    "sinkhorn": nnnorm.Sinkhorn(tau=0.05),
}
for _name, _method in METHODS.items():
    CALLS[f"fit_{_name}"] = lambda _, method=_method: bias_for(method)
DUAL = {
    "dual_softmax": nnnorm.DualSoftmax(20.0, 5.0),
    "dual_dis_paper": nnnorm.DualSoftmax(20.0, 5.0, gate="paper"),
    "dual_dis_safe": nnnorm.DualSoftmax(20.0, 5.0, gate="safe"),
    "sinkhorn_dual": nnnorm.Sinkhorn(tau=0.05),
}
for _name, _method in DUAL.items():
    CALLS[f"fit_{_name}"] = lambda _, method=_method: bias_for(method, gallery_references=ITEMS)
for _name in ("nnn_automatic", "nnn_numbers", "csls", "dn", "inverted_softmax", "sinkhorn"):
    CALLS[f"fit_scores_{_name}"] = lambda _, method=METHODS[_name]: some(
        method.fit_scores(GALLERY @ REFERENCES.T).values
    )


@golden
def fit_automatic_on_shapes(_):
    data = shapes()
    bias = nnnorm.NNN().fit(data.gallery, data.references)
    names = ("reference_k", "alpha", "reliability", "density", "coverage", "spread", "match")
    return {"values": some(bias.values), **{name: bias.params[name] for name in names}}


@golden
def fit_on_repeated_references(_):
    repeated = np.repeat(REFERENCES, 3, axis=0)
    dropped = nnnorm.NNN().fit(GALLERY, repeated)
    kept = nnnorm.NNN(reference_k=16, alpha=0.5).fit(GALLERY, repeated)
    return [some(dropped.values), dropped.weight, some(kept.values), dropped.n_references]


@golden
def fit_with_torch(_):
    return some(nnnorm.NNN(8, 0.5).fit(GALLERY, REFERENCES, solver="torch").values)


@golden
def fit_approximate(_):
    rng = np.random.default_rng(9)
    centers = unit(60, 16, seed=10)
    references = centers[rng.integers(60, size=20_000)] + 0.2 * rng.normal(size=(20_000, 16))
    bias = nnnorm.NNN(8, 0.5).fit(GALLERY[:, :16], references, solver="approximate", normalize=True)
    exact = nnnorm.NNN(8, 0.5).fit(GALLERY[:, :16], references, solver="exact", normalize=True)
    return {"close": bool(np.corrcoef(bias.values, exact.values)[0, 1] > 0.98)}


@golden
def fit_from_files(folder):
    np.save(folder / "gallery.npy", GALLERY.astype(np.float16))
    np.savez(folder / "references.npz", embeddings=REFERENCES)
    bias = nnnorm.NNN(8, 0.5).fit(folder / "gallery.npy", folder / "references.npz")
    bias.save(folder / "bias.safetensors")
    loaded = nnnorm.Bias.load(folder / "bias.safetensors")
    return {"values": some(loaded.values), "weight": loaded.weight, "method": loaded.method}


@golden
def fit_normalized(_):
    bias = nnnorm.NNN().fit(3 * GALLERY, 7 * REFERENCES, normalize=True)
    return some(bias.correction)


# --- search --------------------------------------------------------------------------------------


@golden
def search_uncorrected(_):
    ranking = nnnorm.search(QUERIES, GALLERY, k=4)
    return [ranking.indices[:5].tolist(), some(ranking.scores)]


@golden
def search_weight(_):
    bias = nnnorm.NNN(8, 0.5).fit(GALLERY, REFERENCES)
    return nnnorm.search(QUERIES, GALLERY, bias, k=4, weight=1.0).indices[:5].tolist()


@golden
def search_ids(_):
    names = [f"item {n}" for n in range(len(GALLERY))]
    return np.asarray(nnnorm.search(QUERIES[:3], GALLERY, k=2, ids=names).ids).tolist()


@golden
def score_matrix(_):
    bias = nnnorm.CSLS().fit(GALLERY, REFERENCES)
    return some(nnnorm.ranking.score_matrix(QUERIES, GALLERY, bias))


@golden
def search_with_popularity(_):
    clicks = np.arange(len(GALLERY)) % 7
    bias = nnnorm.NNN(8, 0.5).fit(GALLERY, REFERENCES) + nnnorm.Popularity(clicks, weight=0.02)
    return nnnorm.search(QUERIES, GALLERY, bias, k=4).indices[:5].tolist()


@golden
def augmented_rows(_):
    bias = nnnorm.NNN(8, 0.5).fit(GALLERY, REFERENCES)
    stored = [augmentation.augment_gallery(GALLERY, bias, target=t) for t in ("ip", "cosine", "l2")]
    asked = [augmentation.augment_queries(QUERIES, bias, target=t) for t in ("ip", "cosine", "l2")]
    scores = [some(q @ r.T) for q, r in zip(asked, stored, strict=True)]
    return [[rows.shape[1] for rows in stored], scores[0]]


# --- corrector, bank -----------------------------------------------------------------------------


def fit_corrector(**options):
    return nnnorm.Corrector.fit(GALLERY, REFERENCES, nnnorm.NNN(8, 0.5), **options)


@golden
def corrector_values(folder):
    corrector = fit_corrector()
    corrector.save(folder / "corrector.safetensors")
    loaded = nnnorm.Corrector.load(folder / "corrector.safetensors")
    assert loaded.fingerprint == corrector.fingerprint
    return [some(loaded.bias_for(NEW).values), some(loaded.bias.values), loaded.weight]


@golden
def corrector_automatic(_):
    corrector = nnnorm.Corrector.fit(GALLERY, REFERENCES)
    return [corrector.weight, corrector.method.reference_k, some(corrector.bias_for(NEW).values)]


@golden
def corrector_transforms(_):
    corrector = fit_corrector()
    stored, asked = corrector.transform_items(GALLERY), corrector.transform_queries(QUERIES)
    order = np.argsort(-(asked @ stored.T), axis=1, kind="stable")[:, :5]
    expected = nnnorm.search(QUERIES, GALLERY, corrector.bias, k=5).indices
    return [stored.shape[1], float((order == expected).mean()), some(asked[:, -2])]


@golden
def corrector_refit(_):
    moved = fit_corrector().refit(unit(500, 24, seed=6), gallery=GALLERY).refit_report
    return [moved.correlation, moved.mean_shift, moved.changed_top1]


@golden
def corrector_recent(_):
    params = fit_corrector(recent=unit(64, 24, seed=7)).bias.params
    other = fit_corrector(recent=unit(64, 24, seed=7, shift=-0.6)).bias.params
    used = ("past_queries", "mismatch_z")
    return [found[name] for found in (params, other) for name in used]


@golden
def corrector_popularity(_):
    corrector = fit_corrector()
    clicks = nnnorm.Popularity(np.arange(7), weight=0.01)
    return some(corrector.transform_items(NEW, popularity=clicks)[:, -2])


@golden
def bank_of_a_log(folder):
    bank = nnnorm.Bank.of(np.repeat(REFERENCES[:50], 3, axis=0))
    bank = bank.add(REFERENCES[40:80]) or bank
    bank.save(folder / "bank.safetensors")
    loaded = nnnorm.Bank.load(folder / "bank.safetensors")
    bias = nnnorm.NNN().fit(GALLERY, loaded)
    return [len(loaded), int(np.sum(loaded.counts)), some(bias.values), bias.weight]


# --- evaluation ----------------------------------------------------------------------------------


def a_bias():
    return nnnorm.NNN(8, 0.5).fit(GALLERY, REFERENCES)


def metrics(found):
    recalls = [found.recall(k) for k in (1, 5, 10)]
    return [*recalls, float(np.mean(found.reciprocal_ranks())), float(np.mean(found.ndcg(10)))]


@golden
def evaluate(_):
    data = shapes()
    bias = nnnorm.NNN(32, 0.5).fit(data.gallery, data.references)
    found = nnnorm.evaluate(data.queries[:500], data.gallery, bias, truth=data.truth[:500])
    return metrics(found)


@golden
def evaluate_several_right_items(_):
    truth = [[n, n + 40] for n in range(40)]
    return metrics(nnnorm.evaluate(QUERIES, GALLERY, a_bias(), truth=truth))


@golden
def tune(_):
    data = shapes()
    tuning = nnnorm.tune(
        data.gallery, data.references[::10], queries=data.queries[:600], truth=data.truth[:600]
    )
    best = tuning.best
    return [best.method, dict(best.params), best.recall_at_1, len(tuning.grid), tuning.gain.mean]


@golden
def tune_every_method(_):
    tuning = nnnorm.tune(
        GALLERY, REFERENCES, queries=QUERIES, truth=TRUTH, methods="all", select="max"
    )
    return [tuning.best.method, sum(cell.recall_at_1 for cell in tuning.grid), len(tuning.grid)]


@golden
def compare(_):
    data = shapes()
    found = nnnorm.compare(
        data.gallery,
        data.references[::20],
        queries=data.queries[:400],
        truth=data.truth[:400],
        methods=("nnn", "csls", "is"),
    )
    return found.to_dict()


@golden
def check_with_labels(_):
    data = shapes()
    found = nnnorm.check(
        data.gallery, data.references[::10], queries=data.queries[:600], truth=data.truth[:600]
    )
    return {"verdict": found.verdict, "gain": found.automatic.gain.mean, "next": list(found.next)}


@golden
def check_without_labels(_):
    data = shapes()
    found = nnnorm.check(data.gallery, data.references[::10], queries=data.queries[:600])
    return {"verdict": found.verdict, "moved": found.automatic.moved, "z": found.z}


@golden
def diagnose(_):
    data = shapes()
    found = evaluation.diagnose(data.queries[:600], data.gallery, references=data.references[::10])
    return found.to_dict()


@golden
def audit(_):
    groups = np.array(["a", "b", "c"])[np.arange(len(GALLERY)) % 3]
    return nnnorm.audit(QUERIES, GALLERY, a_bias(), groups=groups).to_dict()


@golden
def scan(_):
    data = shapes()
    planted = data.references[:400].mean(axis=0)
    gallery = np.concatenate([data.gallery, planted[None] / np.linalg.norm(planted)])
    found = nnnorm.scan(gallery, data.references[::4])
    return [sorted(found.to_remove), len(found.kept)]


# --- index ---------------------------------------------------------------------------------------


@golden
def index_life(folder):
    corrector, url = fit_corrector(), f"faiss:{folder / 'index'}"
    index = nnnorm.build_index(url, GALLERY, corrector, ids=np.arange(120))
    first = np.asarray(index.search(QUERIES[:4], k=5).ids).tolist()
    index.add(NEW, ids=np.arange(120, 127))
    index.delete([3, 5])
    second = np.asarray(index.search(QUERIES[:4], k=5).ids).tolist()
    return [first, second]


# --- the command line ----------------------------------------------------------------------------


@functools.cache
def fitted_files() -> dict[str, str]:
    """Words of commands: files of the shapes, the bias and corrector of a fit, and options."""
    data, folder = shapes(), Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    arrays = {
        "gallery": data.gallery,
        "references": data.references[::10],
        "queries": data.queries[:400],
        "truth": data.truth[:400],
    }
    for name, rows in arrays.items():
        np.save(folder / f"{name}.npy", rows)
    names = {name: f"{folder}/{name}.npy" for name in arrays}
    names |= {name: f"{folder}/{name}.safetensors" for name in ("bias", "corrector")}
    names |= {group: words.format(**names) for group, words in OPTIONS.items()}
    run(*"fit {bank} -o {bias} --save-corrector {corrector} --json".format(**names).split())
    return names


def run(*words: Any) -> Any:
    from nnnorm.cli.app import app, load_commands

    load_commands()
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def cli(name: str, keep: str, line: str) -> None:
    """A command with ``--json``, of whose answer some entries are kept; all if none is named."""

    def call(folder: Path) -> Any:
        names = fitted_files() | {"new": f"{folder}/new.safetensors"}
        found = run(*line.format(**names).split(), "--json")
        return {entry: found[entry] for entry in keep.split()} if keep else found

    CALLS[f"cli_{name}"] = call


OPTIONS = {
    "bank": "--gallery {gallery} --references {references}",
    "search": "--gallery {gallery} --queries {queries}",
    "labels": "--gallery {gallery} --queries {queries} --truth {truth}",
}
cli("fit", "method params weight n_gallery n_references", "fit {bank} -o {new}")
cli("fit_numbers", "params weight", "fit {bank} --reference-k 16 --alpha 0.5 -o {new}")
cli("search", "", "search {search} --bias {bias} -k 3")
cli("evaluate", "", "evaluate {labels} --bias {bias}")
cli("tune", "best uncorrected n_queries n_references", "tune {labels} --references {references}")
cli("check", "verdict expectation reliability", "check {search} --references {references}")
cli("diagnose", "hubs", "evaluate {search} --bias {bias}")
cli("info", "method n_gallery weight", "info {bias}")
cli("bank", "n_seen", "bank {references} -o {new}")
cli("extend", "n_gallery weight", "extend --corrector {corrector} --items {gallery} -o {new}")
cli("drift", "", "drift --corrector {corrector} --queries {queries}")
cli("scan", "n_items", "scan {bank}")


def compute(name: str, folder: Path) -> Any:
    """The result of one call, as JSON."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = CALLS[name](folder)
    return json.loads(json.dumps(found, default=plain))


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return dict(value)
