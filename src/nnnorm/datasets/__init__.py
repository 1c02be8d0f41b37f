"""Data sets in the roles of a search: gallery, queries, truth, references, validation."""

from nnnorm.datasets.shapes import Shapes, load_shapes

__all__ = ["Shapes", "load_shapes"]
