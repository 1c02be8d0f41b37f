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
from nnnorm.cli.figures import draw_figures, draw_histogram
from nnnorm.errors import NNNormError
from nnnorm.io import make_folder, write_whole

# The names of the devices, which `reproduce.runtime` knows; importing it here would take too long.
Device = Literal["cpu", "cuda", "mps"]
_TRENDS = "trends"
_SETTINGS = "settings-image"
Kind = Literal["karpathy", "coco", "table", "visogender", "clip-retrieval"]


@command("dataset karpathy dataset_flickr30k.json --images flickr30k-images -o embeddings")
def dataset(
    kind: Annotated[Kind, Argument(help="Kind of the file.")],
    files: Annotated[
        list[Path], Argument(help="The file (clip-retrieval: folder); several for COCO's own.")
    ],
    output: Annotated[
        Path, Option("--output", "-o", metavar="FOLDER", help="Folder for the lists.")
    ],
    images: Annotated[Path | None, Option(metavar="FOLDER", help="Folder of the pictures.")] = None,
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
        Path | None, Option(metavar="FOLDER", help="Folder with embeddings of the paper's models.")
    ] = None,
    encoder: Annotated[
        list[str] | None, Option(help="Encode what is missing there: clip=MODEL; repeatable.")
    ] = None,
    stand_in: Annotated[
        list[str] | None, Option(help="Other material: shapes, or flickr8k=FOLDER; repeatable.")
    ] = None,
    results: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="Folder that keeps every finished cell, to go on from there after a break; by "
            "default `results` in the folder of --embeddings.",
        ),
    ] = None,
    by_cell: Annotated[
        bool,
        Option("--by-cell", help="A line per cell, with its interval, not the paper's layout."),
    ] = False,
    histogram: Annotated[
        list[str] | None,
        Option(help="With --plots: N_1 of MODEL/DATASET, such as siglip/coco; repeatable."),
    ] = None,
    device: Annotated[
        Device, Option(help="What the exhaustive search of the runtime table runs on.")
    ] = "cpu",
    seed: Seed = 0,
    normalize: Normalize = None,
    *,
    report: Report,
) -> None:
    """List the paper's tables, or measure some and show them next to the paper's."""
    from nnnorm.reproduce import EmbeddingFolder, Runner, open_stand_in, tabulate_overview

    report.check()
    folder = None
    if embeddings is not None:
        folder = EmbeddingFolder(embeddings, normalize=normalize, seed=seed)
    if table is None and histogram is None:
        overview = tabulate_overview(folder)
        listed = [dict(zip(overview.columns, row, strict=True)) for row in overview.rows]
        report.deliver([overview], listed)
        return
    wanted, with_trends = _find_tables(table or [])
    others = dict(open_stand_in(text) for text in stand_in or [])
    _check_sources(folder, others, encoder, histogram, report)
    kept = _open_results(results, embeddings)
    run = _Run(report, by_cell=by_cell)
    with show_steps() as step:
        for text in encoder or []:
            _encode(folder, wanted, text, step)
        if folder is not None:
            runner = Runner(folder.open, seed=seed, results=kept, device=device)
            run.measure_paper(runner, wanted, folder, step)
            run.draw_histograms(runner, histogram or [], folder)
            if with_trends:
                run.find_trends({"ours": runner}, step)
        if others:
            runners = {
                name: Runner(
                    lambda *_, material=material: material,
                    seed=seed,
                    results=kept,
                    device=device,
                )
                for name, material in others.items()
            }
            run.measure_stand_ins(runners, wanted, step)
            if with_trends:
                run.find_trends(runners, step, stand_ins=True)
    run.check_measured(embeddings)
    report.deliver(run.tables, run.results, run.figures)
    if kept is not None and kept.n_found:
        typer.echo(f"{kept.n_found} figures were there; {kept.n_kept} were measured", err=True)
    run.check_failures(kept is not None)


def _find_tables(names: list[str]) -> tuple[list[Any], bool]:
    """The tables of these names, and whether the trends are asked for."""
    from nnnorm.reproduce import find_tables

    wanted = find_tables([name for name in names if name != _TRENDS])
    return wanted, _TRENDS in names or "all" in names


def _check_sources(
    folder: Any, others: dict[str, Any], encoder: Any, histogram: Any, report: Report
) -> None:
    if folder is None and not others:
        raise NNNormError("give --embeddings DIR with the models' embeddings, or --stand-in shapes")
    if encoder and folder is None:
        raise NNNormError("--encoder needs --embeddings DIR, where the embeddings go")
    if histogram and (folder is None or report.plots is None):
        raise NNNormError(
            "--histogram needs --embeddings DIR and --plots FOLDER; that of a stand-in is drawn "
            "with --table hubness"
        )


def _open_results(results: Path | None, embeddings: Path | None) -> Any:
    """Where finished cells are kept; None where nothing was said and nothing can be written."""
    from nnnorm.reproduce import Results

    if results is not None:
        return Results(make_folder(results))
    if embeddings is None:
        return None
    if os.access(embeddings, os.W_OK):
        return Results(embeddings / "results")
    typer.echo(
        f"Note: {embeddings} can't be written to, so finished cells are not kept; give --results",
        err=True,
    )
    return None


class _Run:
    """Collects tables, results for JSON, figures and failures of one call."""

    def __init__(self, report: Report, *, by_cell: bool) -> None:
        self._by_cell, self._keep_going = by_cell, not report.debug
        self.tables: list[Any] = []
        self.results: list[dict[str, Any]] = []
        self.figures: dict[str, Callable[[Any], Any]] = {}
        self._outcomes: list[tuple[str, Any]] = []

    def measure_paper(self, runner: Any, tables: Sequence[Any], folder: Any, step: Any) -> None:
        """Measure tables with the paper's models; one without any figure is left out."""
        from nnnorm.reproduce import lay_out_beside_paper, run_table, tabulate_beside_paper

        show = tabulate_beside_paper if self._by_cell else lay_out_beside_paper
        for table in tables:
            outcomes = run_table(runner, table, step=step, keep_going=self._keep_going)
            self._outcomes += [(table.name, outcome) for outcome in outcomes]
            if not any(outcome.figure for outcome in outcomes):
                if len(tables) > 1:
                    reason = _reason(outcomes)
                    typer.echo(f"Note: table {table.name} is left out: {reason}", err=True)
                continue
            self.tables.append(show(table, outcomes, _notes_of(table, runner)))
            cells = [outcome.to_dict() for outcome in outcomes]
            self.results.append(
                {"table": table.name, **_where_timed(table, runner), "cells": cells}
            )
            self.figures |= draw_figures(runner, table, outcomes, "", folder)

    def measure_stand_ins(self, runners: dict[str, Any], tables: Sequence[Any], step: Any) -> None:
        """Measure tables with stand-ins."""
        from nnnorm.reproduce import lay_out_stand_ins, run_table, tabulate_stand_ins

        show = tabulate_stand_ins if self._by_cell else lay_out_stand_ins
        for table in tables:
            found = {
                name: run_table(
                    runner, table, stand_in=name, step=step, keep_going=self._keep_going
                )
                for name, runner in runners.items()
            }
            one = next(iter(runners.values()))
            self.tables.append(show(table, found, _notes_of(table, one)))
            cells = {name: [one.to_dict() for one in some] for name, some in found.items()}
            about = {"table": table.name, **_where_timed(table, one)}
            self.results.append({**about, "stand_ins": cells})
            for name, outcomes in found.items():
                self._outcomes += [(table.name, outcome) for outcome in outcomes]
                self.figures |= draw_figures(runners[name], table, outcomes, f"{name}-")

    def find_trends(self, runners: dict[str, Any], step: Any, *, stand_ins: bool = False) -> None:
        """Sum up the four trends and the cost of DBNorm."""
        from dataclasses import asdict

        from nnnorm.reproduce import find_trends, tabulate_trends

        if step is not None:
            step(_TRENDS)
        trends, outcomes = find_trends(runners, stand_ins=stand_ins, keep_going=self._keep_going)
        is_one_of_several = bool(self._outcomes)
        self._outcomes += [(_TRENDS, outcome) for outcome in outcomes]
        if not any(trend.is_measured for trend in trends):
            if is_one_of_several:
                typer.echo(f"Note: table {_TRENDS} is left out: {_reason(outcomes)}", err=True)
            return
        self.tables.append(tabulate_trends(trends))
        self.results.append({"table": _TRENDS, "trends": [asdict(trend) for trend in trends]})

    def draw_histograms(self, runner: Any, wanted: Sequence[str], folder: Any) -> None:
        """Draw N_1 of any model and data set."""
        for text in wanted:
            self.figures |= draw_histogram(runner, text, folder)

    def check_measured(self, root: Path | None) -> None:
        """Raise if nothing at all was measured, with the way to go on."""
        from nnnorm.reproduce import find_tables, list_material, load_paper

        if self.tables or self.figures or not self._outcomes:
            return
        name, _ = self._outcomes[0]
        reason = _reason([outcome for _, outcome in self._outcomes])
        if root is None:
            raise NNNormError(f"nothing of table {name} can be measured: {reason}")
        message = f"nothing of table {name} can be measured from {root}: {reason}"
        # The trends have no cells of their own; the embeddings of the settings are all they need.
        needed = _SETTINGS if name == _TRENDS else name
        (table,) = [table for table in find_tables([needed]) if table.name == needed]
        if table.cells[0].experiment.kind == "embeddings":
            short = load_paper().models[list_material(table)[0][0]]
            asked = " ".join(f"--table {one}" for one in dict.fromkeys((needed, name)))
            message += f". For one model: nnnorm reproduce {asked} "
            message += f"--embeddings {shlex.quote(str(root))} --encoder {short}=MODEL"
        raise NNNormError(message)

    def check_failures(self, are_kept: bool) -> None:
        """Raise if cells failed, after everything else is delivered."""
        failed = [(name, outcome) for name, outcome in self._outcomes if outcome.failed]
        if not failed:
            return
        name, first = failed[0]
        kept = "are kept, and the same command measures only these again" if are_kept else "stand"
        raise NNNormError(
            f"{len(failed)} of {len(self._outcomes)} cells failed, the first in table {name}, "
            f"{first.row}, {first.column}: {first.failed}. All other figures {kept}"
        )


def _reason(outcomes: Sequence[Any]) -> str:
    """Why there is no figure: a failure, or else what is missing."""
    return next((o.failed for o in outcomes if o.failed), None) or str(outcomes[0].missing)


def _notes_of(table: Any, runner: Any) -> tuple[str, ...]:
    timed = _where_timed(table, runner)
    return tuple(f"Timed on {where}." for where in timed.values())


def _where_timed(table: Any, runner: Any) -> dict[str, str]:
    return {"device": runner.runs_on} if table.is_timed else {}


def _encode(folder: Any, tables: Any, text: str, step: Any) -> None:
    from nnnorm.reproduce import encode_missing, find_missing

    short, equals, source = text.partition("=")
    if not (short and equals and source):
        raise typer.BadParameter(f"expected clip=MODEL, got {text!r}", param_hint="--encoder")
    encode_missing(folder, find_missing(folder, tables, short), source, step=step)


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
