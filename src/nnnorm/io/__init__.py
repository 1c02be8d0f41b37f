"""Arrays and files in, whole files out.

arrays       arrays of any library, files and folders of shards, read as numpy arrays
parquet      embeddings and texts out of parquet files
embeddings   the one door for embeddings: opened, checked, read in float32 blocks
files        files written whole or not at all
"""

from nnnorm.io.arrays import find_shards
from nnnorm.io.embeddings import (
    Embeddings,
    Metric,
    Source,
    check_same_dim,
    norm_range,
    open_embeddings,
    open_matrix,
)
from nnnorm.io.files import check_writable, make_folder, write_whole
from nnnorm.io.parquet import read_text_columns

__all__ = [
    "Embeddings",
    "Metric",
    "Source",
    "check_same_dim",
    "check_writable",
    "find_shards",
    "make_folder",
    "norm_range",
    "open_embeddings",
    "open_matrix",
    "read_text_columns",
    "write_whole",
]
