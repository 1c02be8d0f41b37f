"""The command `nnnorm dataset`: a data set's captions, pairs and splits as plain lists."""

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
    command,
    print_facts,
    print_json,
    show_progress,
)
from nnnorm.errors import NNNormError
from nnnorm.files import make_folder, write_whole

Kind = Literal["karpathy", "coco", "table", "clip-retrieval"]


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
    from nnnorm.encoders import check_inputs

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
            problems = check_inputs(
                found.images, skip=skip_broken, decode=decode, progress=progress
            )
    images_of = found.images if kind != "clip-retrieval" else ()
    if problems:
        found = found.without_images([problem.row for problem in problems])
    written, facts = _write_dataset(found, make_folder(output), files)
    if problems:
        skipped = output / f"{written[0].stem}-skipped.txt"
        _write_lines(
            skipped, [f"{images_of[problem.row]}\t{problem.reason}" for problem in problems]
        )
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
    }
    return readers[kind](files[0], images)


def _write_dataset(
    found: Any, output: Path, files: Sequence[Path]
) -> tuple[tuple[Path, ...], dict[str, Any]]:
    from nnnorm import datasets

    pairs = found.pairs if isinstance(found, datasets.ClipRetrieval) else found
    main = output / f"{pairs.name}.json"
    if os.path.realpath(main) in map(os.path.realpath, files):
        raise NNNormError(f"{main} is an input and would be overwritten; choose another -o")
    splits = {split: len(rows) for split, rows in pairs.splits.items()}
    facts = {"n_images": len(pairs.images), "n_captions": len(pairs.captions), "splits": splits}
    if isinstance(found, datasets.ClipRetrieval):
        return datasets.save_clip_retrieval(found, output), facts
    return datasets.save_pairs(found, output), facts


def _write_lines(path: Path, lines: list[str]) -> None:

    text = "\n".join(lines) + "\n"
    write_whole(path, lambda file: file.write(text.encode("utf-8")))
