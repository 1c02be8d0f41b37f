"""Measure the effect of a correction: recall, hubs, tuning, comparisons, audits.

metrics      the right items of every query and their ranks: R@K, MRR, nDCG
hubness      how often items are retrieved, hubs, a null model; `diagnose`
trec         run files and qrels of TREC and BEIR
results      results as JSON and pandas tables; bootstrap intervals
sweep        whole grids of settings, from one pass and one product
tuning       choosing a method and its settings on held-out queries
checking     `check`: hubs, past queries, effect and recommendation in one report
clusters     two clusters of unlabeled items with different biases
comparison   methods tuned in the same way, and compared
drift        whether a corrector's past queries still match today's queries
outliers     items that look adversarial or corrupt
groups       how often groups of items are retrieved, before and after a correction
"""

from nnnorm.evaluation.checking import Check, check
from nnnorm.evaluation.comparison import Comparison, Result, Task, compare, make_result
from nnnorm.evaluation.drift import Drift, measure_drift
from nnnorm.evaluation.groups import Audit, audit
from nnnorm.evaluation.hubness import (
    Diagnosis,
    compare_occurrences,
    count_occurrences,
    diagnose,
    expect_occurrences,
    find_hubs,
    find_rescued,
    hub_hits,
    judge_hubs,
    measure_hubness,
    robust_z,
)
from nnnorm.evaluation.metrics import (
    Evaluation,
    Truth,
    evaluate,
    evaluate_ranking,
    mean_metrics,
    open_truth,
    read_truth,
    warn_of_mismatched_bank,
    warn_of_overlap,
)
from nnnorm.evaluation.outliers import Scan, scan, screen
from nnnorm.evaluation.results import Interval, interval_of_difference, interval_of_mean
from nnnorm.evaluation.trec import read_qrels, read_run, truth_of_qrels, write_qrels, write_run
from nnnorm.evaluation.tuning import Cell, Select, Tuning, tune
