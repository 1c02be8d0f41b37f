"""Data sets: one that ships as embeddings, and readers of data sets on disk.

`load_shapes` returns a complete search task. The readers return images, captions, pairs and splits
(`Pairs`).
"""

from nnnorm.datasets.clip_retrieval import ClipRetrieval, read_clip_retrieval, save_clip_retrieval
from nnnorm.datasets.coco import read_coco
from nnnorm.datasets.karpathy import read_karpathy
from nnnorm.datasets.pairs import Pairs, load_pairs, save_pairs
from nnnorm.datasets.scenes import (
    BACKGROUNDS,
    COLOURS,
    SHAPES,
    SIZES,
    Thing,
    draw_scene,
    read_scene,
)
from nnnorm.datasets.shapes import Shapes, load_shapes
from nnnorm.datasets.table import read_table
