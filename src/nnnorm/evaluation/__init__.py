"""Measure the effect of a correction: recall, hubs, tuning, comparisons, audits.

metrics      the right items of every query and their ranks: R@K, MRR, nDCG
hubness      how often items are retrieved, hubs, a null model; `diagnose`
trec         run files and qrels of TREC and BEIR
results      results as JSON and as tables of pandas; intervals by resampling
sweep        all settings of all methods from one pass, and R@1 of each from one product
tuning       choosing a method and its settings on held-out queries
checking     `check`: hubs, past queries, effect and recommendation in one report
comparison   methods compared
drift        whether the past queries of a corrector are still like those of today
outliers     which items look adversarial or corrupt
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
