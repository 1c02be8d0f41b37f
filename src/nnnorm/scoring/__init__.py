"""Scores in blocks, and reductions over them: private to the package.

blocks      products of embeddings, or a ready matrix, read a block at a time
threads     strips of rows on all cores, with one BLAS thread each
reducers    state of a strip while its blocks are read: best values, sums, log-mean-exps
topk        the reductions that all methods use, within a memory budget
"""

from nnnorm.scoring.blocks import DEFAULT_MEMORY_BUDGET, Matrix, Products, Scores
from nnnorm.scoring.reducers import LEAST_EXPONENT, KeepBestValues
from nnnorm.scoring.threads import count_threads, in_threads, on_a_worker, strips_in_order
from nnnorm.scoring.topk import (
    TopK,
    check_k,
    log_mean_exp,
    mean,
    reduce_rows,
    scan,
    top_k,
    top_means,
)
