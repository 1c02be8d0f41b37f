"""Data sets: one that ships as embeddings, and readers of those that people have on disk.

`load_shapes` gives a whole search. The readers give images, captions, pairs and splits (`Pairs`);
`paper_protocol` makes of them the parts of the paper's experiment.
"""

from nnnorm.datasets.clip_retrieval import ClipRetrieval, read_clip_retrieval
from nnnorm.datasets.coco import read_coco
from nnnorm.datasets.karpathy import read_karpathy
from nnnorm.datasets.pairs import Pairs, load_pairs, save_pairs
from nnnorm.datasets.protocol import Protocol, paper_protocol
from nnnorm.datasets.shapes import Shapes, load_shapes
from nnnorm.datasets.table import read_table
from nnnorm.datasets.visogender import VisoGender, read_visogender

__all__ = [
    "ClipRetrieval",
    "Pairs",
    "Protocol",
    "Shapes",
    "VisoGender",
    "load_pairs",
    "load_shapes",
    "paper_protocol",
    "read_clip_retrieval",
    "read_coco",
    "read_karpathy",
    "read_table",
    "read_visogender",
    "save_pairs",
]
