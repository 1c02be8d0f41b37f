"""The commands from pictures to the paper's tables: dataset and reproduce."""

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from nnnorm.cli.app import (
    Debug,
    Figures,
    Json,
    Normalize,
    Report,
    Seed,
    command,
    print_facts,
    print_json,
    show_progress,
    show_steps,
)
from nnnorm.errors import NNNormError
from nnnorm.io import check_writable, make_folder, write_whole
from nnnorm.report import plot_audit

Kind = Literal["karpathy", "coco", "table", "visogender", "clip-retrieval"]


@command("dataset karpathy dataset_flickr30k.json --images flickr30k-images -o embeddings")
def dataset(
    kind: Annotated[Kind, Argument(help="Kind of the file.")],
    files: Annotated[
        list[Path], Argument(help="The file (clip-retrieval: folder); several for COCO's own.")
    ],
    output: Annotated[Path, Option("--output", "-o", help="Folder for the lists.")],
    images: Annotated[Path | None, Option(help="Folder of the pictures.")] = None,
    skip_broken: Annotated[
        bool, Option("--skip-broken", help="Leave out pictures that can't be used.")
    ] = False,
    decode: Annotated[
        bool, Option("--decode", help="Decode every picture completely (needs Pillow).")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a data set's images, captions, pairs and splits as plain lists."""
    from nnnorm.datasets import check_images

    if kind == "clip-retrieval" and (images or skip_broken or decode):
        raise NNNormError(
            "clip-retrieval's folders hold embeddings, so no pictures are checked; leave out "
            "--images, --skip-broken and --decode"
        )
    found = _read_dataset(kind, files, Path(os.path.realpath(images or Path())))
    if output.exists():
        make_folder(output)  # fails before all pictures are checked if it can't be written to
    problems = []
    if kind != "clip-retrieval":
        with show_progress("Checking pictures") as progress:
            problems = check_images(
                found.images, skip=skip_broken, decode=decode, progress=progress
            )
    if problems:
        found = found.without_images([problem.row for problem in problems])
    written, facts = _write_dataset(found, make_folder(output), files)
    if problems:
        skipped = output / f"{written[0].stem}-skipped.txt"
        _write_lines(skipped, [f"{problem.image}\t{problem.reason}" for problem in problems])
        written += (skipped,)
        n_skipped = "1 picture is" if len(problems) == 1 else f"{len(problems):,} pictures are"
        typer.echo(f"Note: {n_skipped} left out; see {skipped}", err=True)
    about = {**facts, "n_skipped": len(problems), "files": [str(path) for path in written]}
    if as_json:
        print_json(about)
        return
    shown = {**about, "files": "\n".join(about["files"])}
    if splits := facts.get("splits"):
        shown["splits"] = ", ".join(f"{name} {n:,}" for name, n in splits.items())
    print_facts(written[0].stem, {name: value for name, value in shown.items() if value != {}})
    if kind == "clip-retrieval":
        gallery, truth = (shlex.quote(str(path)) for path in (written[4], written[3]))
        texts = shlex.quote(str(files[0] / "text_emb"))
        typer.echo(
            f"\nNext: nnnorm evaluate --gallery {gallery} --queries {texts} --truth {truth}",
            err=True,
        )
        return
    lists = [shlex.quote(str(path)) for path in written[1:3]]
    typer.echo(
        f"\nNext: nnnorm encode MODEL --images {lists[0]} --texts {lists[1]} "
        f"-o {shlex.quote(str(output / 'MODEL' / written[0].stem))}",
        err=True,
    )


@command("reproduce --table image-retrieval --stand-in shapes")
def reproduce(
    table: Annotated[
        list[str] | None,
        Option(help="Table to measure; repeat for several. Without it, all are listed."),
    ] = None,
    embeddings: Annotated[
        Path | None, Option(help="Folder with embeddings of the paper's models.")
    ] = None,
    encoder: Annotated[
        list[str] | None, Option(help="Encode what is missing there: clip=MODEL; repeatable.")
    ] = None,
    stand_in: Annotated[
        list[str] | None, Option(help="Other material: shapes, or flickr8k=FOLDER; repeatable.")
    ] = None,
    seed: Seed = 0,
    normalize: Normalize = None,
    latex: Annotated[Path | None, Option(help="Write the tables there as LaTeX.")] = None,
    *,
    report: Report,
) -> None:
    """List the paper's tables, or measure some and show them next to the paper's."""
    from nnnorm.reproduce import (
        EmbeddingFolder,
        Runner,
        find_tables,
        open_stand_in,
        tabulate_overview,
    )

    report.check()
    if latex is not None:
        check_writable(latex)
    folder = None
    if embeddings is not None:
        folder = EmbeddingFolder(embeddings, normalize=normalize, seed=seed)
    if table is None:
        overview = tabulate_overview(folder)
        listed = [dict(zip(overview.columns, row, strict=True)) for row in overview.rows]
        report.deliver([overview], listed)
        return
    wanted = find_tables(table)
    others = dict(open_stand_in(text) for text in stand_in or [])
    if folder is None and not others:
        raise NNNormError("give --embeddings DIR with the models' embeddings, or --stand-in shapes")
    if encoder and folder is None:
        raise NNNormError("--encoder needs --embeddings DIR, where the embeddings go")
    runs: list[_Run] = []
    with show_steps() as step:
        for text in encoder or []:
            _encode(folder, wanted, text, step)
        if folder is not None:
            runner = Runner(folder.open, seed=seed)
            runs += [_run_paper(runner, one, embeddings, step) for one in wanted]
        if others:
            runners = {
                name: Runner(lambda *_, material=material: material, seed=seed)
                for name, material in others.items()
            }
            runs += [_run_stand_ins(runners, one, step) for one in wanted]
    tables = [made for made, _, _ in runs]
    if latex is not None:
        _write_lines(latex, ["% needs \\usepackage{booktabs}", *(t.to_latex() for t in tables)])
    figures = {name: draw for _, _, some in runs for name, draw in some.items()}
    report.deliver(tables, [about for _, about, _ in runs], figures)


_Run = tuple[Any, dict[str, Any], Figures]


def _encode(folder: Any, tables: Any, text: str, step: Any) -> None:
    from nnnorm.reproduce import encode_missing, find_missing

    short, equals, source = text.partition("=")
    if not (short and equals and source):
        raise typer.BadParameter(f"expected clip=MODEL, got {text!r}", param_hint="--encoder")
    encode_missing(folder, find_missing(folder, tables, short), source, step=step)


def _run_paper(runner: Any, table: Any, root: Any, step: Any) -> _Run:
    from nnnorm.reproduce import list_material, load_paper, run_table, tabulate_beside_paper

    outcomes = run_table(runner, table, step=step)
    if not any(outcome.figure for outcome in outcomes):
        message = f"nothing of table {table.name} can be measured from {root}: "
        message += str(outcomes[0].missing)
        if table.cells[0].experiment.kind == "embeddings":
            short = load_paper().models[list_material(table)[0][0]]
            message += f". For one model: nnnorm reproduce --table {table.name} "
            message += f"--embeddings {shlex.quote(str(root))} --encoder {short}=MODEL"
        raise NNNormError(message)
    return (
        tabulate_beside_paper(table, outcomes),
        {"table": table.name, "cells": [outcome.to_dict() for outcome in outcomes]},
        _pictures(runner, table, outcomes, ""),
    )


def _run_stand_ins(runners: dict[str, Any], table: Any, step: Any) -> _Run:
    from nnnorm.reproduce import run_table, tabulate_stand_ins

    found = {
        name: run_table(runner, table, stand_in=name, step=step) for name, runner in runners.items()
    }
    about = {name: [outcome.to_dict() for outcome in some] for name, some in found.items()}
    pictures: dict[str, Any] = {}
    for name, outcomes in found.items():
        pictures |= _pictures(runners[name], table, outcomes, f"{name}-")
    return tabulate_stand_ins(table, found), {"table": table.name, "stand_ins": about}, pictures


def _pictures(runner: Any, table: Any, outcomes: Sequence[Any], prefix: str) -> Figures:
    """The paper's figures: histograms of N_1, and bias by occupation."""
    from dataclasses import replace

    after = [
        outcome for outcome in outcomes if outcome.figure and outcome.experiment.method == "nnn"
    ]
    pictures: dict[str, Callable[[Any], Any]] = {}
    if table.name == "gender" and after:
        audit = runner.groups(after[0].experiment)
        pictures[f"{prefix}gender.png"] = lambda _: plot_audit(audit)
    if table.name in ("hubness", "cross-attention"):
        for direction in dict.fromkeys(outcome.experiment.direction for outcome in after):
            with_nnn = next(o.experiment for o in after if o.experiment.direction == direction)
            counts = [runner.occurrences(replace(with_nnn, method=m)) for m in ("none", "nnn")]
            title = f"{with_nnn.model}, {direction} retrieval: how often does each item come first?"
            pictures[f"{prefix}{table.name}-{direction}.png"] = _histogram(counts, title)
    return pictures


def _histogram(counts: Sequence[Any], title: str) -> Callable[[Any], Any]:
    return lambda drawing: drawing.plot_occurrences(*counts, title=title)


def _read_dataset(kind: Kind, files: list[Path], images: Path) -> Any:
    from nnnorm import datasets

    if kind == "coco":
        return datasets.read_coco(files, images)
    if len(files) > 1:
        what = "folder" if kind == "clip-retrieval" else "file"
        raise NNNormError(f"{kind} takes one {what}; got {len(files)}")
    if kind == "clip-retrieval":
        return datasets.read_clip_retrieval(files[0])
    readers: dict[str, Callable[[Path, Path], Any]] = {
        "karpathy": datasets.read_karpathy,
        "table": datasets.read_table,
        "visogender": datasets.read_visogender,
    }
    return readers[kind](files[0], images)


def _write_dataset(
    found: Any, output: Path, files: Sequence[Path]
) -> tuple[tuple[Path, ...], dict[str, Any]]:
    from nnnorm import datasets

    main = output / "visogender.tsv"
    if not isinstance(found, datasets.VisoGender):
        pairs = found.pairs if isinstance(found, datasets.ClipRetrieval) else found
        main = output / f"{pairs.name}.json"
    if os.path.realpath(main) in map(os.path.realpath, files):
        raise NNNormError(f"{main} is an input and would be overwritten; choose another -o")
    if isinstance(found, datasets.VisoGender):
        return datasets.save_visogender(found, output), {
            "n_images": len(found.images),
            "n_captions": len(found.questions),
        }
    splits = {split: len(rows) for split, rows in pairs.splits.items()}
    facts = {"n_images": len(pairs.images), "n_captions": len(pairs.captions), "splits": splits}
    if isinstance(found, datasets.ClipRetrieval):
        return datasets.save_clip_retrieval(found, output), facts
    return datasets.save_pairs(found, output), facts


def _write_lines(path: Path, lines: list[str]) -> None:

    text = "\n".join(lines) + "\n"
    write_whole(path, lambda file: file.write(text.encode("utf-8")))
