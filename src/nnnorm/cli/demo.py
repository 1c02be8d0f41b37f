"""`nnnorm demo`, which prints a first line before the slow imports."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from nnnorm.cli.app import Debug, Json, command, print_json, print_story, show_steps


@command("demo --output demo-output")
def demo(
    output: Annotated[
        Path, Option("--output", "-o", metavar="FOLDER", help="For the bias, pictures and plots.")
    ] = Path("demo-output"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run the main job on data that ships with the package: hubs, before and after."""
    if not as_json:  # at once: the imports take a moment
        typer.echo("Hubs in a search for pictures, and what nnnorm does about them.\n")
        sys.stdout.flush()
    from nnnorm.demo import describe_demo, introduce_demo, run_demo

    if not as_json:
        print_story([introduce_demo()])
    with show_steps() as step:
        done = run_demo(output, step=step)
    if as_json:
        print_json(done.to_dict())
        return

    print_story(describe_demo(done))
