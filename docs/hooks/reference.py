"""Write the site's reference from docstrings and `--help` whenever the site is built.

No part of it is stored, so it can't be out of date. mkdocstrings renders the docstrings; it reads
the source without importing it.
"""

from mkdocs.structure.files import File
from typer.main import get_command

import nnnorm
from nnnorm.cli.app import app, load_commands, show_option
from nnnorm.cli.options import GROUPS

# Public names by topic. Names that aren't listed go last.
TOPICS = {
    "Correct": "Corrector Bank Bias Popularity NNN CSLS DN InvertedSoftmax DualSoftmax Sinkhorn",
    "Search": "search Ranking calibrate score_matrix open_embeddings Embeddings",
    "Measure": "check diagnose evaluate tune compare audit scan Task",
    "Serve": "build_index open_index copy_index verify_index rerank "
    "augment_gallery augment_queries",
}

# Commands by task. Commands that aren't listed go last.
TASKS = {
    "Correct a search": "demo check fit search explore",
    "Serve it from a vector database": "index",
    "Keep it up to date": "bank extend drift calibrate scan",
    "Measure and tune": "evaluate tune compare audit",
    "Prepare data": "encode dataset info",
}


def on_files(files, config):
    """Add both reference pages."""
    files.append(File.generated(config, "reference/commands.md", content=write_commands()))
    files.append(File.generated(config, "reference/python.md", content=write_names()))
    return files


def write_names():
    """Write a page with every public name, for mkdocstrings to fill in."""
    left = [name for name in nnnorm.__all__ if not name.startswith("__")]
    parts = ["# Python", "All of these names are in `nnnorm`: `nnnorm.search`, `nnnorm.NNN` …"]
    for topic, names in [*TOPICS.items(), ("Others", " ".join(left))]:
        parts.append(f"## {topic}")
        for name in [name for name in names.split() if name in left]:
            left.remove(name)
            thing = getattr(nnnorm, name)
            parts += [f"### {name}", f"::: {thing.__module__}.{thing.__qualname__}"]
    return "\n\n".join(parts)


def write_commands():
    """Write a page with the help of every command."""
    load_commands()
    left = dict(get_command(app).commands)
    parts = ["# Command line", "This page has the text of `nnnorm COMMAND --help`, by task."]
    for task, names in [*TASKS.items(), ("Others", " ".join(left))]:
        chosen = [name for name in names.split() if name in left]
        parts += [f"## {task}"] if chosen else []
        for name in chosen:
            for full_name, command in walk(left.pop(name), f"nnnorm {name}"):
                parts += [f"### {full_name}", *write_command(command)]
    return "\n\n".join(parts)


def write_command(command):
    """Write the help of a command, its options, and its example."""
    parts = [command.help or ""]
    if hasattr(command, "commands"):
        return parts
    for parameter in (one for group in GROUPS for one in command.options_of(group)):
        names, meaning = show_option(parameter)
        meaning = meaning.replace("[", r"\[")  # a default value, not a link
        parts.append(f"`{names}`\n:   {meaning}")
    return [*parts, f"```sh\n{command.epilog.partition('Example: ')[2]}\n```"]


def walk(command, name):
    """Yield a command and its subcommands with their full names, common ones first."""
    yield name, command
    if hasattr(command, "commands"):
        for below in command.list_commands(None):
            yield from walk(command.commands[below], f"{name} {below}")
