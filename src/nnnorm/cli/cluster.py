"""A fit that is spread over processes and machines: parts of `fit`, and the command `merge`."""

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from nnnorm.bias import Bias
from nnnorm.cli.app import (
    Debug,
    Json,
    Spread,
    check_output,
    command,
    print_facts,
    print_json,
    show_progress,
)
from nnnorm.cli.core import facts_of_bias
from nnnorm.cluster import Job, fit_on_ray, settle
from nnnorm.cluster import merge as merge_parts
from nnnorm.errors import NNNormError
from nnnorm.io import Share, check_local, find_place, show_url
from nnnorm.methods import Method


@command("merge bias.parts -o bias.safetensors")
def merge(
    folder: Annotated[Path, Argument(help="Folder that `nnnorm fit --shard` wrote to.")],
    output: Annotated[
        Path,
        Option(
            "--output",
            "-o",
            help="Where the bias goes: a .safetensors file, or a new folder of them for very many "
            "items.",
        ),
    ],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Join the parts of a fit that was spread over several processes."""
    output = check_local(output, "a bias")
    if output.suffix:
        check_output(output, ".safetensors", [])
    bias = merge_parts(folder)
    if output.suffix:
        bias.save(output)
    else:
        bias.save_in_files(output)
    if as_json:
        print_json({**bias.to_dict(), "output": str(output)})
        return
    print_facts(*facts_of_bias(bias, output))
    typer.echo(
        f"\nNext: nnnorm search --gallery GALLERY --queries QUERIES "
        f"--bias {shlex.quote(str(output))}",
        err=True,
    )


def fit_share(
    spread: Spread, method: Method, gallery: Path, references: Any, output: Path, options: Any
) -> None:
    """Do the work of `fit --shard`, and print what is left."""
    share = Share.read(str(spread.shard))
    place = find_place(output)
    if os.fspath(place).startswith("memory://"):
        raise NNNormError(
            f"{show_url(place)} is the memory of this command, which is lost with it; give a "
            "folder, or a URL of a store"
        )
    if output.suffix == ".safetensors":
        raise NNNormError(
            f"with --shard the output is a folder that all shards share, such as "
            f"{output.with_suffix('.parts')}; nnnorm merge makes the bias of it. Got {output}"
        )
    as_json = options.pop("as_json")
    job = _settle(method, gallery, references, output, options)
    with show_progress(f"Shard {share} of the gallery") as progress:
        worked = job.work(share, memory_budget=options["memory_budget"], progress=progress)
    left = worked.n_left
    first, last = worked.rows
    if as_json:
        print_json(
            {
                "folder": str(place),
                "shard": list(share),
                "rows": [first, last],
                "is_new": worked.is_new,
                "n_missing": left,
                "job": job.fingerprint,
            }
        )
        return
    done = "is done" if worked.is_new else "was done already"
    typer.echo(f"Shard {share} {done}: rows {first:,} to {last - 1:,} in {place}")
    folder = shlex.quote(str(place))
    after = f"nnnorm merge {folder} -o bias.safetensors"
    typer.echo(
        f"\nNext: {after}" if not left else f"\n{left} of {share.n_shares} shards are left",
        err=True,
    )


def fit_on_cluster(
    spread: Spread, method: Method, gallery: Path, references: Any, output: Path, options: Any
) -> Bias:
    """Do the work of `fit --on ray`."""
    job = _settle(method, gallery, references, output.with_suffix(".parts"), options)
    with show_progress("Scoring the gallery on Ray") as progress:
        return fit_on_ray(
            job,
            spread.shards,
            address=spread.address,
            num_cpus=spread.num_cpus,
            num_gpus=spread.num_gpus,
            memory_budget=options["memory_budget"],
            progress=progress,
        )


def _settle(
    method: Method, gallery: Path, references: Any, folder: Path, options: dict[str, Any]
) -> Job:
    with show_progress("Reading the gallery and the references") as progress:
        source = os.fspath(find_place(gallery))
        return settle(source, references, method, folder=folder, progress=progress, **options)
