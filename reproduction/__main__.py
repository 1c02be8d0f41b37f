"""The command `python -m reproduction`, for a clone of the repository."""

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nnnorm import NNNormError
from nnnorm.datasets import save_pairs
from nnnorm.errors import MissingExtraError
from nnnorm.files import check_writable, make_folder, write_whole
from nnnorm.report import Table, plots
from reproduction.encode import check_sources, encode_needed, find_needed, read_sources
from reproduction.figures import Figures, find_figures
from reproduction.material import EmbeddingFolder, read_visogender
from reproduction.paper import Cell, PaperTable, find_tables
from reproduction.run import Results, Runner, run_table
from reproduction.runtime import DEVICES
from reproduction.synthetic import open_data
from reproduction.tables import lay_out, make_latex, tabulate_overview


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
        print("Error: interrupted; run the same command again to continue", file=sys.stderr)
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Create the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m reproduction",
        description="List the paper's tables, or measure some and print them next to the paper's.",
    )
    add = parser.add_argument
    add("--table", action="append", metavar="NAME", help="table to measure; may be repeated")
    add("--embeddings", type=Path, metavar="DIR", help="folder with lists and embeddings")
    add("--models", type=Path, metavar="TOML", help="models to encode missing embeddings with")
    add("--encoder", action="append", default=[], metavar="NAME=MODEL", help="one such model")
    add("--data", action="append", default=[], help="measure on shapes or flickr8k=FOLDER instead")
    add("--visogender", type=Path, metavar="TSV", help="write VisoGender's lists to --embeddings")
    add("--images", type=Path, metavar="FOLDER", help="pictures for --visogender")
    add("--device", choices=DEVICES, default="cpu", help="device of the runtime table")
    add("--encode-on", default="auto", metavar="DEVICE", help="device of the encoders")
    add("--seed", type=int, default=0, help="seed of splits and intervals")
    add("--normalize", action="store_true", default=None, help="divide rows by their norms")
    add("--json", action="store_true", help="print JSON instead of tables")
    add("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    add("--latex", type=Path, metavar="FILE", help="write tabulars to copy into a paper")
    add("--plots", type=Path, metavar="FOLDER", help="save the figures")
    add("--debug", action="store_true", help="stop at the first error, with its traceback")
    return parser


def run(given: argparse.Namespace) -> None:
    """Run the chosen action."""
    folder, report = None, Report()
    if given.visogender is not None:
        if given.embeddings is None:
            raise NNNormError("--visogender needs --embeddings DIR, the folder for its lists")
        found = read_visogender(given.visogender, (given.images or Path()).resolve())
        for path in save_pairs(found, make_folder(given.embeddings)):
            print(path, file=sys.stderr)
    if given.embeddings is not None:
        folder = EmbeddingFolder(given.embeddings, normalize=given.normalize, seed=given.seed)
    if given.table is None:
        if given.visogender is None:
            report.list_tables(folder)
            report.deliver(given)
        return
    tables = find_tables(given.table)
    others = dict(open_data(text) for text in given.data)
    sources = {} if given.models is None else read_sources(given.models)
    for text in given.encoder:
        short, equals, source = text.partition("=")
        if not (short and equals and source):
            raise NNNormError(f"--encoder must be NAME=MODEL, such as clip=FOLDER; got {text!r}")
        sources[short] = source
    if folder is None and (sources or not others):
        also = "" if sources else ", or --data shapes"
        raise NNNormError(f"pass --embeddings DIR, the folder for the models' embeddings{also}")
    for path in (given.markdown, given.latex):
        if path is not None:
            check_writable(path)
    if folder is not None and sources:
        needed = find_needed(folder, tables, set(sources))
        check_sources(folder, needed, sources)
        encode_needed(folder, needed, sources, device=given.encode_on)
    kept = None if folder is None else Results(folder.root / "results")
    options: Any = {"seed": given.seed, "device": given.device, "debug": given.debug}
    if folder is not None:
        report.measure({"ours": Runner(folder.open, results=kept, **options)}, tables, folder)
    if others:
        runners = {name: Runner(lambda *_, m=m: m, **options) for name, m in others.items()}
        report.measure(runners, tables, None)
    report.check_measured()
    report.deliver(given)
    if kept is not None and kept.n_found:
        print(f"{kept.n_found} results were stored; {kept.n_kept} were measured", file=sys.stderr)
    report.check_failures(kept is not None)


class Report:
    """Collects the tables, JSON results, figures and cells of one run."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.results: list[dict[str, Any]] = []
        self._figures: Figures = {}
        self._cells: list[tuple[str, Cell]] = []  # with the name of the table

    def list_tables(self, folder: EmbeddingFolder | None) -> None:
        """List the paper's tables, and which of their inputs exist."""
        overview = tabulate_overview(folder)
        self.tables.append(overview)
        self.results += [dict(zip(overview.columns, row, strict=True)) for row in overview.rows]

    def measure(
        self,
        runners: dict[str, Runner],
        tables: Sequence[PaperTable],
        folder: EmbeddingFolder | None,
    ) -> None:
        """Measure tables with the paper's models, or on other data if `folder` is None."""
        other = folder is None
        for table in tables:
            found = {n: run_table(r, table, data=n if other else None) for n, r in runners.items()}
            every = [cell for cells in found.values() for cell in cells]
            self._cells += [(table.name, cell) for cell in every]
            if not other and not any(cell.figure for cell in every):
                if len(tables) > 1:
                    reason = _find_reason(every)
                    print(f"Note: table {table.name} is left out: {reason}", file=sys.stderr)
                continue
            listed = {name: [asdict(cell) for cell in cells] for name, cells in found.items()}
            result: dict[str, Any] = {"table": table.name}
            notes = []
            if table.is_timed:
                result["device"] = next(iter(runners.values())).runs_on
                notes.append(f"Timed on {result['device']}.")
            result |= {"other_data": listed} if other else {"cells": listed["ours"]}
            self.results.append(result)
            self.tables.append(lay_out(table, found, notes, other=other))
            for name, cells in found.items():
                prefix = f"{name}-" if other else ""
                self._figures |= find_figures(runners[name], table, cells, prefix, folder)

    def check_measured(self) -> None:
        """Raise an error if nothing was measured."""
        if not self.tables:
            reason = _find_reason([cell for _, cell in self._cells])
            raise NNNormError(
                f"nothing of table {self._cells[0][0]} can be measured: {reason}. "
                "To encode missing embeddings, pass --models TOML or --encoder NAME=MODEL"
            )

    def check_failures(self, are_kept: bool) -> None:
        """Raise an error if cells failed, after all other output is written."""
        if failed := [(name, cell) for name, cell in self._cells if cell.failed]:
            name, first = failed[0]
            kept = "are stored; run the same command again" if are_kept else "are complete"
            raise NNNormError(
                f"{len(failed)} of {len(self._cells)} cells failed, the first in table {name}, "
                f"{first.row}, {first.column}: {first.failed}. All other results {kept}"
            )

    def deliver(self, given: argparse.Namespace) -> None:
        """Write Markdown, LaTeX and plots if requested, then print tables or JSON."""
        if given.markdown is not None:
            text = "\n\n".join(table.to_markdown() for table in self.tables) + "\n"
            write_whole(given.markdown, lambda file: file.write(text.encode()))
        if given.latex is not None:
            write_whole(given.latex, lambda file: file.write(make_latex(self.tables).encode()))
        if given.plots is not None:
            make_folder(given.plots)
            for name, draw in self._figures.items():
                plots.save_figure(draw(), given.plots / name)
                print(f"Plot: {given.plots / name}", file=sys.stderr)
        if given.json:
            print(json.dumps(self.results, indent=2, ensure_ascii=False))
            return
        for table in self.tables:
            table.print()
            print()


def _find_reason(cells: Sequence[Cell]) -> str:
    """Return the reason for missing results: a failure, or missing inputs."""
    return next((cell.failed for cell in cells if cell.failed), None) or str(cells[0].missing)


if __name__ == "__main__":
    sys.exit(main())
