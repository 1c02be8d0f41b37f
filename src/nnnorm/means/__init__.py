"""The mean of each item's k best reference scores, m_k, by every solver: private to the package.

dispatch         which solver computes the means, and what it reports about their error
pruned           exact means for less than the whole product
pruning_plan     whether pruning pays, and how wide its bounds should be
bounds           upper bounds on scores from a few rotated coordinates
grouping         an order of items in which neighbours are similar
approximate      means in time sublinear in the bank, with a measured error
inverted_lists   the bank as lists of similar references
torch, faiss     means computed by those libraries
"""

from nnnorm.means.approximate import choose_quality
from nnnorm.means.dispatch import Solver, check_solver, means_by
from nnnorm.means.faiss import build_ivf, ivf_means

__all__ = [
    "Solver",
    "build_ivf",
    "check_solver",
    "choose_quality",
    "ivf_means",
    "means_by",
]
