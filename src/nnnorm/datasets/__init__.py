"""Data sets: one that ships as embeddings, and readers of data sets on disk.

`load_shapes` returns a complete search task. The readers return images, captions, pairs and splits
(`Pairs`); `paper_protocol` divides them into the parts of the paper's experiment.
"""

from nnnorm.datasets.clip_retrieval import ClipRetrieval, read_clip_retrieval, save_clip_retrieval
from nnnorm.datasets.coco import read_coco
from nnnorm.datasets.karpathy import read_karpathy
from nnnorm.datasets.pairs import Pairs, load_pairs, save_pairs
from nnnorm.datasets.pictures import check_images
from nnnorm.datasets.protocol import Direction, Part, Protocol, paper_protocol
from nnnorm.datasets.scenes import SHAPES, encode_png, read_scene, write_png
from nnnorm.datasets.shapes import Shapes, load_shapes
from nnnorm.datasets.sheet import GREEN, ORANGE, Row, draw_sheet
from nnnorm.datasets.table import read_table
from nnnorm.datasets.visogender import GENDERS, VisoGender, read_visogender, save_visogender
