"""Data sets: one that ships as embeddings, and readers of data sets on disk.

`load_shapes` returns a complete search task. The readers return images, captions, pairs and splits
(`Pairs`), or the texts of a BEIR folder.
"""

from nnnorm.datasets.pairs import Pairs, load_pairs, save_pairs
from nnnorm.datasets.readers import Beir, read_beir, read_coco, read_karpathy, read_table
from nnnorm.datasets.shapes import SHAPES, Shapes, load_shapes, read_scene
