"""The command: `python -m reproduction`, from a checkout of the repository."""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nnnorm import NNNormError
from nnnorm.errors import MissingExtraError
from nnnorm.files import make_folder, write_whole
from nnnorm.report import plots
from reproduction.encode import Source, check_sources, encode_needed, find_needed, read_sources
from reproduction.figures import Figures, find_figures, find_histograms
from reproduction.latex import make_document
from reproduction.material import EmbeddingFolder
from reproduction.paper import PaperTable, find_tables
from reproduction.results import Results
from reproduction.run import Outcome, Runner, run_table
from reproduction.runtime import DEVICES
from reproduction.standins import open_stand_in
from reproduction.tables import Found, lay_out, list_cells, tabulate_overview
from reproduction.trends import find_trends, tabulate_trends
from reproduction.visogender import read_visogender, save_visogender

_TRENDS = "trends"
_OF_TRENDS = ("settings", "image-retrieval", "text-retrieval", "k-sweep")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    given = make_parser().parse_args(arguments)
    warnings.showwarning = lambda message, *_, **__: print(f"Note: {message}", file=sys.stderr)
    try:
        run(given)
    except (NNNormError, MissingExtraError) as error:
        if given.debug:
            raise
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Error: interrupted; the same command continues", file=sys.stderr)
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m reproduction",
        description="List the paper's tables, or measure some and show them next to the paper's.",
    )
    add = parser.add_argument
    add("--table", action="append", metavar="NAME", help="table to measure; repeatable")
    add("--embeddings", type=Path, metavar="DIR", help="folder of lists and embeddings")
    add("--models", type=Path, metavar="TOML", help="encode what is missing with these models")
    add("--encoder", action="append", default=[], metavar="clip=MODEL", help="the same, for one")
    add("--stand-in", action="append", default=[], help="other data: shapes, flickr8k=FOLDER")
    add("--visogender", type=Path, metavar="TSV", help="write VisoGender's lists to --embeddings")
    add("--images", type=Path, metavar="FOLDER", help="pictures of --visogender")
    add("--results", type=Path, metavar="FOLDER", help="where finished cells are kept")
    add("--by-cell", action="store_true", help="a line per cell, with its interval")
    add("--histogram", action="append", default=[], help="with --plots: N_1 of MODEL/DATASET")
    add("--device", choices=DEVICES, default="cpu", help="for the runtime table's exact search")
    add("--encode-on", default="auto", metavar="DEVICE", help="device of the encoders")
    add("--seed", type=int, default=0)
    add("--normalize", action="store_true", default=None, help="divide rows by their norms")
    add("--json", action="store_true", help="print JSON instead of tables")
    add("--markdown", type=Path, metavar="FILE")
    add("--latex", type=Path, metavar="FILE")
    add("--plots", type=Path, metavar="FOLDER")
    add("--debug", action="store_true", help="stop at the first error, with its traceback")
    return parser


def run(given: argparse.Namespace) -> None:
    """Do what was asked for."""
    folder = None
    if given.visogender is not None:
        _write_visogender(given)
    if given.embeddings is not None:
        folder = EmbeddingFolder(given.embeddings, normalize=given.normalize, seed=given.seed)
    if given.table is None and not given.histogram:
        if given.visogender is None:
            overview = tabulate_overview(folder)
            rows = [dict(zip(overview.columns, row, strict=True)) for row in overview.rows]
            _deliver(given, [overview], rows, {})
        return
    names = given.table or []
    tables = find_tables([name for name in names if name != _TRENDS])
    with_trends = _TRENDS in names or "all" in names
    others = dict(open_stand_in(text) for text in given.stand_in)
    sources = _find_sources(given)
    if folder is None and not others:
        raise NNNormError("give --embeddings DIR with the models' embeddings, or --stand-in shapes")
    if sources and folder is None:
        raise NNNormError("--models and --encoder need --embeddings DIR, where embeddings go")
    if given.histogram and (folder is None or given.plots is None):
        raise NNNormError("--histogram needs --embeddings DIR and --plots FOLDER")
    for path in (given.markdown, given.latex):
        if path is not None and not path.absolute().parent.is_dir():
            raise NNNormError(f"cannot write {path}: there is no folder {path.parent}")
    if sources and folder is not None:
        every = [*tables, *(find_tables(_OF_TRENDS) if with_trends else [])]
        needed = find_needed(folder, every, set(sources))
        check_sources(folder, needed, sources)
        encode_needed(folder, needed, sources, device=given.encode_on, step=_say)
    kept = _open_results(given)
    options: Any = {"seed": given.seed, "results": kept, "device": given.device}
    session = Session(given.by_cell, keep_going=not given.debug)
    if folder is not None:
        runner = Runner(folder.open, **options)
        session.measure({"ours": runner}, tables, folder)
        for text in given.histogram:
            session.figures |= find_histograms(runner, text, folder)
        if with_trends:
            session.find_trends({"ours": runner}, stand_ins=False)
    if others:
        runners = {
            name: Runner(lambda *_, material=material: material, **options)
            for name, material in others.items()
        }
        session.measure(runners, tables, None)
        if with_trends:
            session.find_trends(runners, stand_ins=True)
    session.check_measured()
    _deliver(given, session.tables, session.results, session.figures)
    if kept is not None and kept.n_found:
        print(f"{kept.n_found} figures were there; {kept.n_kept} were measured", file=sys.stderr)
    session.check_failures(kept is not None)


def _write_visogender(given: argparse.Namespace) -> None:
    if given.embeddings is None:
        raise NNNormError("--visogender needs --embeddings DIR, where its lists go")
    images = Path(os.path.realpath(given.images or Path()))
    for path in save_visogender(
        read_visogender(given.visogender, images), make_folder(given.embeddings)
    ):
        print(path, file=sys.stderr)


def _find_sources(given: argparse.Namespace) -> dict[str, Source]:
    sources = {} if given.models is None else read_sources(given.models)
    for text in given.encoder:
        short, equals, source = text.partition("=")
        if not (short and equals and source):
            raise NNNormError(f"--encoder takes clip=MODEL; got {text!r}")
        sources[short] = Source(source)
    return sources


def _open_results(given: argparse.Namespace) -> Results | None:
    """Return where finished cells are kept; by default in the folder of the embeddings."""
    if given.results is not None:
        return Results(make_folder(given.results))
    if given.embeddings is None:
        return None
    if os.access(given.embeddings, os.W_OK):
        return Results(given.embeddings / "results")
    print("Note: DIR can't be written to, so finished cells are not kept", file=sys.stderr)
    return None


class Session:
    """Collects tables, results for JSON, figures and failures of one call."""

    def __init__(self, by_cell: bool, *, keep_going: bool) -> None:
        self._show, self._keep_going = list_cells if by_cell else lay_out, keep_going
        self.tables: list[Any] = []
        self.results: list[dict[str, Any]] = []
        self.figures: Figures = {}
        self._outcomes: list[tuple[str, Outcome]] = []

    def measure(
        self,
        runners: dict[str, Runner],
        tables: Sequence[PaperTable],
        folder: EmbeddingFolder | None,
    ) -> None:
        """Measure tables with the paper's models, or with stand-ins if there is no folder."""
        stand_ins = folder is None
        for table in tables:
            found: Found = {
                name: run_table(
                    runner,
                    table,
                    stand_in=name if stand_ins else None,
                    step=_say,
                    keep_going=self._keep_going,
                )
                for name, runner in runners.items()
            }
            every = [outcome for outcomes in found.values() for outcome in outcomes]
            self._outcomes += [(table.name, outcome) for outcome in every]
            if not stand_ins and not any(outcome.figure for outcome in every):
                if len(tables) > 1:
                    reason = _reason(every)
                    print(f"Note: table {table.name} is left out: {reason}", file=sys.stderr)
                continue
            one = next(iter(runners.values()))
            timed = {"device": one.runs_on} if table.is_timed else {}
            notes = [f"Timed on {where}." for where in timed.values()]
            self.tables.append(self._show(table, found, notes, stand_ins=stand_ins))
            cells = {name: [asdict(o) for o in outcomes] for name, outcomes in found.items()}
            measured = {"stand_ins": cells} if stand_ins else {"cells": cells["ours"]}
            self.results.append({"table": table.name, **timed, **measured})
            for name, outcomes in found.items():
                prefix = f"{name}-" if stand_ins else ""
                self.figures |= find_figures(runners[name], table, outcomes, prefix, folder)

    def find_trends(self, runners: dict[str, Runner], *, stand_ins: bool) -> None:
        """Sum up the four trends and the cost of DBNorm."""
        _say(_TRENDS)
        trends, outcomes = find_trends(runners, stand_ins=stand_ins, keep_going=self._keep_going)
        is_one_of_several = bool(self._outcomes)
        self._outcomes += [(_TRENDS, outcome) for outcome in outcomes]
        if any(trend.is_measured for trend in trends):
            self.tables.append(tabulate_trends(trends))
            self.results.append({"table": _TRENDS, "trends": [asdict(one) for one in trends]})
        elif is_one_of_several:
            print(f"Note: table {_TRENDS} is left out: {_reason(outcomes)}", file=sys.stderr)

    def check_measured(self) -> None:
        """Raise if nothing at all was measured."""
        if not (self.tables or self.figures) and self._outcomes:
            reason = _reason([outcome for _, outcome in self._outcomes])
            raise NNNormError(
                f"nothing of table {self._outcomes[0][0]} can be measured: {reason}. "
                "--models TOML or --encoder clip=MODEL encodes what is missing"
            )

    def check_failures(self, are_kept: bool) -> None:
        """Raise if cells failed, after everything else is delivered."""
        failed = [(name, outcome) for name, outcome in self._outcomes if outcome.failed]
        if failed:
            name, first = failed[0]
            kept = "are kept; the same command measures only these again" if are_kept else "stand"
            raise NNNormError(
                f"{len(failed)} of {len(self._outcomes)} cells failed, the first in table {name}, "
                f"{first.row}, {first.column}: {first.failed}. All other figures {kept}"
            )


def _reason(outcomes: Sequence[Outcome]) -> str:
    """Return why there is no figure: a failure, or else what is missing."""
    return next((o.failed for o in outcomes if o.failed), None) or str(outcomes[0].missing)


def _deliver(given: argparse.Namespace, tables: list[Any], results: Any, figures: Figures) -> None:
    """Write Markdown, LaTeX and plots where asked, then print the tables, or JSON."""
    writers: dict[str, Callable[[list[Any]], str]] = {
        "markdown": lambda every: "\n\n".join(table.to_markdown() for table in every) + "\n",
        "latex": make_document,
    }
    for name, write in writers.items():
        path = getattr(given, name)
        if path is not None:
            text = write(tables).encode()
            write_whole(path, lambda file, text=text: file.write(text))  # type: ignore[misc]
    if given.plots is not None:
        make_folder(given.plots)
        for name, draw in figures.items():
            plots.save_figure(draw(), given.plots / name)
            print(f"Plot: {given.plots / name}", file=sys.stderr)
    if given.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
        return
    for place, table in enumerate(tables):
        if place:
            print()
        table.print()


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"{text} …", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
