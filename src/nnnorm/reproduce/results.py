"""Finished cells in a folder, one file each, so that a run that was broken off goes on.

The name of a file is a digest of all that its figure depends on: the experiment, the content of the
embeddings, the seed and the version. What was measured from other inputs is therefore never found.
Files are written whole or not at all.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nnnorm.errors import NNNormError, first_line, warn
from nnnorm.io import make_folder, read_json, write_whole

_FORMAT = 1


@dataclass(frozen=True)
class Figure:
    """The result of an experiment, on the paper's scale.

    Attributes
    ----------
    value : float or tuple (α, k)
        Recalls and precisions in %, gains in points.
    low, high : float or None
        95 % interval, where there is one.
    """

    value: float | tuple[float, int]
    low: float | None = None
    high: float | None = None


def read_figure(record: Mapping[str, Any]) -> Figure:
    """Return the figure of a dictionary from JSON.

    Examples
    --------
    >>> read_figure({"value": [0.75, 128], "low": None, "high": None}).value
    (0.75, 128)
    """
    value = record["value"]
    if isinstance(value, list):
        alpha, reference_k = value
        value = float(alpha), int(reference_k)
    low, high = record["low"], record["high"]
    ends = (None if end is None else float(end) for end in (low, high))
    return Figure(value if isinstance(value, tuple) else float(value), *ends)


class Results:
    """A folder of finished cells.

    Parameters
    ----------
    folder : Path
        Created with the first cell.

    Examples
    --------
    >>> import tempfile
    >>> results = Results(Path(tempfile.mkdtemp()) / "cells")
    >>> results.keep({"metric": "recall_at_1", "seed": 0}, Figure(30.4))
    >>> results.find({"metric": "recall_at_1", "seed": 0}).value
    30.4
    >>> results.find({"metric": "recall_at_1", "seed": 1}) is None
    True
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: set[Path] = set()
        self._kept: set[Path] = set()

    @property
    def n_found(self) -> int:
        """Number of figures that an earlier run had kept."""
        return len(self._found - self._kept)

    @property
    def n_kept(self) -> int:
        """Number of figures that were kept by this run."""
        return len(self._kept)

    def find(self, identity: Mapping[str, Any]) -> Figure | None:
        """Return the stored figure of exactly this experiment and these inputs, if there is one."""
        path = self._path(identity)
        if not path.is_file():
            return None
        try:
            figure = read_figure(read_json(path, "a finished cell")["figure"])
        except (NNNormError, KeyError, TypeError, ValueError):
            return None  # measured again, and written over
        self._found.add(path)
        return figure

    def keep(self, identity: Mapping[str, Any], figure: Figure) -> None:
        """Write a figure, with what it depends on; where that fails, warn and go on."""
        path = self._path(identity)
        text = json.dumps({"figure": asdict(figure), **identity}, indent=1, ensure_ascii=False)
        try:
            make_folder(self._folder)
            write_whole(path, lambda file: file.write(text.encode()))
        except (NNNormError, OSError) as error:
            warn(f"a finished cell can't be kept ({first_line(error)}); a resumed run repeats it")
            return
        self._kept.add(path)

    def _path(self, identity: Mapping[str, Any]) -> Path:
        text = json.dumps({"format": _FORMAT, **identity}, sort_keys=True)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
