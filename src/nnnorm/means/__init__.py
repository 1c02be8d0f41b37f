"""The mean of each item's k best reference scores, m_k, by every solver: private to the package.

                   means_by (dispatch): solver=
        ┌──────────┬────────┼──────────────┬───────────────┐
      exact      auto     pruned      approximate    torch, faiss-ivf
        │    ┌─────┴────┐   │              │               │
        │  exact ◄race► pruned      inverted lists   those libraries
        ▼    ▼          ▼   ▼              ▼               ▼
      the whole       bounds rule    probe near lists,   exact, or
      product         most pairs     correct by a        probed lists
                      out            regression
        └── equal up to float32 ──┘  └── with a measured error ──┘

dispatch         what each solver is, what "auto" decides, when a long run is announced
race             the whole product against pruning, on the first rows of the real work
exact            the whole product, for some rows
pruned           exact means from the part of the product that bounds leave
pruning_plan     whether pruning can save work, and how wide its bounds should be
bounds           upper bounds on scores from a few rotated coordinates
grouping         an order of items in which neighbours are similar
approximate      means in time sublinear in the bank, with a measured error
inverted_lists   the bank, clustered into lists
torch, faiss     means computed by those libraries
"""

from nnnorm.means.approximate import choose_quality, count_list_scores, expected_error
from nnnorm.means.dispatch import (
    Learnt,
    Solver,
    check_solver,
    learn_means,
    means_by,
    restore_means,
)
from nnnorm.means.faiss import build_ivf, ivf_means
