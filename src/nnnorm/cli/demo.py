"""`nnnorm demo`: a corrected search on data that ships with the package."""

import sys
from pathlib import Path

import typer

from nnnorm.cli.app import command
from nnnorm.cli.options import FOLDER
from nnnorm.cli.output import Answer, print_parts, show_progress


@command("demo --output demo-output", output=FOLDER)
def demo(output: Path = Path("demo-output"), as_json: bool = False) -> Answer:
    """Show hubs before and after a correction, on data that ships with the package."""
    if not as_json:  # before the imports, which are slow
        typer.echo("Hubs in a search for pictures, and what nnnorm does about them.\n")
        sys.stdout.flush()
    from nnnorm.demo import INTRODUCTION, describe_demo, run_demo

    if not as_json:
        print_parts([INTRODUCTION])
    with show_progress("Searching, before and after"):
        done = run_demo(output)
    return Answer(done.to_dict(), [] if as_json else list(describe_demo(done)))
