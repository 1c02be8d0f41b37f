"""`nnnorm plan`: what a fit on many machines would take, before anything is rented."""

import math
from typing import Annotated

import typer
from typer import Option

from nnnorm.cli.app import Debug, Json, command, print_json, print_story, show_steps
from nnnorm.cluster import (
    DEFAULT_RESIDUAL,
    DEFAULT_TFLOPS,
    Machines,
    Plan,
    Workload,
    describe_bytes,
    describe_duration,
    make_plan,
    measure_rates,
)
from nnnorm.errors import NNNormError
from nnnorm.report import Table

_LABELS = {
    "exact": "exact",
    "approximate": "approximate",
    "gpu": "exact on GPUs",
    "sample": "a random part",
    "default": "default",
}


@command("plan --gallery 1e9 --references 1e7 --dim 512 --nodes 32 --cores 64")
def plan(
    gallery: Annotated[str, Option(metavar="N", help="Number of items, such as 1e9.")],
    references: Annotated[str, Option(metavar="N", help="Number of past queries, such as 1e7.")],
    dim: Annotated[str, Option(metavar="N", help="Dimensions of the embeddings.")],
    reference_k: Annotated[
        str, Option(metavar="N", help="How many references are averaged per item.")
    ] = "10",
    nodes: Annotated[str, Option(metavar="N", help="Number of machines.")] = "1",
    cores: Annotated[str, Option(metavar="N", help="Cores of each machine.")] = "1",
    gpus: Annotated[str, Option(metavar="N", help="GPUs of each machine.")] = "0",
    gpu_tflops: Annotated[
        float, Option(help="What each GPU does, in 10¹² float32 operations per second.")
    ] = DEFAULT_TFLOPS,
    residual: Annotated[
        float, Option(help="Error that a part of the bank may leave, of the values' deviation.")
    ] = DEFAULT_RESIDUAL,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict time, memory and traffic of a fit on many machines, from a short calibration."""
    counts = {
        name: _read_count(f"--{name.replace('_', '-')}", text)
        for name, text in {
            "gallery": gallery,
            "references": references,
            "dim": dim,
            "reference_k": reference_k,
            "nodes": nodes,
            "cores": cores,
            "gpus": gpus,
        }.items()
    }
    workload = Workload(
        counts["gallery"], counts["references"], counts["dim"], counts["reference_k"]
    )
    machines = Machines(counts["nodes"], counts["cores"], counts["gpus"], gpu_tflops)
    if not (math.isfinite(residual) and 0 < residual < 1):
        raise NNNormError(f"--residual must be between 0 and 1; got {residual}")
    with show_steps() as step:
        if step is not None:
            step("Timing the solvers on this machine, about ten seconds")
        rates = measure_rates(workload.dim, workload.reference_k)
    made = make_plan(workload, machines, rates, residual=residual)
    if as_json:
        print_json(made.to_dict())
        return
    print_story([*_tell(made), "", _tabulate(made)])


def _read_count(option: str, text: str) -> int:
    """A whole number, which may be written as 1e9 or 1_000_000."""
    try:
        value = float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number", param_hint=option) from None
    if not math.isfinite(value) or value != int(value):
        raise NNNormError(f"{option} must be a whole number; got {text}")
    return int(value)


def _tell(plan: Plan) -> list[str]:
    machines, work = plan.machines, plan.workload
    exact, approximate, default = map(plan.way, ("exact", "approximate", "default"))
    faster = exact.seconds / default.seconds
    text = (
        f"Exact: {describe_duration(exact.seconds)} on {machines.nodes:,} x {machines.cores:,} "
        f"cores; approximate: {describe_duration(approximate.seconds)} (error about "
        f"{approximate.residual:.0%}); "
    )
    if default.n_references == work.n_references:
        return [text + "a bank of this size is used whole by default."]
    return [
        f"{text}a bank of {default.n_references:,} unique queries: "
        f"{describe_duration(default.seconds)}, which is the default.",
        f"Every reference (--duplicates keep) takes {faster:,.0f} times as long. Gains stop "
        "growing at about 4,000 references.",
        f"A residual of {plan.wanted_residual:.0%} needs a mean over {plan.enough_k:,} references "
        f"of any bank drawn at random; k = {work.reference_k:,} leaves {default.residual:.0%}.",
    ]


def _tabulate(plan: Plan) -> Table:
    machines, work = plan.machines, plan.workload
    title = (
        f"{work.n_gallery:,} items x {work.n_references:,} references, {work.dim:,} dimensions, "
        f"k = {work.reference_k:,}"
    )
    rows = tuple(
        (
            _LABELS[way.name],
            f"{way.n_references:,}",
            f"{way.reference_k:,}",
            "0" if way.residual == 0 else f"{way.residual:.1%}",
            describe_duration(way.seconds_once) if way.seconds_once else "",
            describe_duration(way.seconds),
            describe_bytes(way.worker_bytes),
            describe_bytes(way.moved_bytes),
        )
        for way in plan.ways
    )
    notes = [
        f"Measured on {plan.rates.cores} cores of this machine; a cluster of other machines is "
        "faster or slower by as much as they are. Starting, waiting and lost workers are not "
        "counted.",
        "Error: to the values of the whole bank; of the default, to those of an endless bank of "
        "the same kind, half to twice that on real sets. Once: on one node, before the map, mostly "
        "for reading the gallery. Memory: of one worker per node, for all of its cores.",
    ]
    if machines.gpus:
        notes.append(
            f"GPUs were not measured: {machines.nodes:,} x {machines.gpus:,} that do "
            f"{machines.gpu_tflops:g} TFLOPS each are assumed (--gpu-tflops)."
        )
    columns = ("way", "references", "k", "error", "once", "time", "memory", "moved")
    return Table(title, columns, rows, tuple(notes))
