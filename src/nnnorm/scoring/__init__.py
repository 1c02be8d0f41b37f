"""Scores in blocks, and what is kept of them: private to the package.

blocks      products of embeddings, or a ready matrix, handed out a block at a time
threads     strips of rows spread over the cores, with BLAS held to one thread each
reducers    what is kept of a strip while its columns pass: best values, sums, log-mean-exps
topk        the reductions every method is made of, within a memory budget
"""

from nnnorm.scoring.blocks import DEFAULT_MEMORY_BUDGET, Matrix, Products, Scores
from nnnorm.scoring.reducers import LEAST_EXPONENT, KeepBestValues
from nnnorm.scoring.threads import count_threads, in_threads, on_a_worker, strips_in_order
from nnnorm.scoring.topk import check_k, log_mean_exp, mean, scan, top_k, top_means

__all__ = [
    "DEFAULT_MEMORY_BUDGET",
    "LEAST_EXPONENT",
    "KeepBestValues",
    "Matrix",
    "Products",
    "Scores",
    "check_k",
    "count_threads",
    "in_threads",
    "log_mean_exp",
    "mean",
    "on_a_worker",
    "scan",
    "strips_in_order",
    "top_k",
    "top_means",
]
