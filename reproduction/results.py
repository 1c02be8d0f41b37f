"""Finished cells in a folder, one file each, so that an interrupted run continues.

The name of a file is a digest of all that its figure depends on: the experiment, the content of the
embeddings, the seed and the version. Figures of other inputs are therefore never found.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nnnorm import NNNormError, NNNormWarning
from nnnorm.files import make_folder, write_whole


@dataclass(frozen=True)
class Figure:
    """A result on the paper's scale: recalls and precisions in %, gains in points."""

    value: float | tuple[float, int]
    low: float | None = None
    high: float | None = None
    used: Mapping[str, Any] | None = None


def read_figure(record: Mapping[str, Any]) -> Figure:
    """Return the figure of a dictionary from JSON."""
    value = record["value"]
    if isinstance(value, list):
        value = float(value[0]), int(value[1])
    low, high = (None if record[end] is None else float(record[end]) for end in ("low", "high"))
    value = value if isinstance(value, tuple) else float(value)
    return Figure(value, low, high, record.get("used"))


class Results:
    """A folder of finished cells, created with the first one."""

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
        """Number of figures that this run kept."""
        return len(self._kept)

    def find(self, identity: Mapping[str, Any]) -> Figure | None:
        """Return the stored figure of exactly this experiment and these inputs, if there is one."""
        path = self._path(identity)
        try:
            figure = read_figure(json.loads(path.read_text(encoding="utf-8"))["figure"])
        except (OSError, KeyError, TypeError, ValueError, IndexError):
            return None  # not there, or damaged: measured again, and overwritten
        self._found.add(path)
        return figure

    def keep(self, identity: Mapping[str, Any], figure: Figure) -> None:
        """Write a figure, with what it depends on."""
        path = self._path(identity)
        text = json.dumps({"figure": asdict(figure), **identity}, indent=1, ensure_ascii=False)
        try:
            make_folder(self._folder)
            write_whole(path, lambda file: file.write(text.encode()))
        except (NNNormError, OSError) as error:
            words = f"a finished cell can't be kept ({error}); a resumed run repeats it"
            warnings.warn(words, NNNormWarning, stacklevel=2)
            return
        self._kept.add(path)

    def _path(self, identity: Mapping[str, Any]) -> Path:
        text = json.dumps({"format": 2, **identity}, sort_keys=True)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
