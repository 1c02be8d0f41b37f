"""Measuring what a correction does: recall, hubs, tuning, comparisons, audits.

truth        the right items of every query
evaluation   ranks of the right items: R@K, MRR, nDCG
hubness      statistics of how often items are retrieved
intervals    bootstrap intervals, clustered and paired
splits       folds of queries, by item; references that are among the queries
grid         all settings of all methods from one pass over each bank
sweep        R@1 of very many corrections from one product; `gated` for gated methods
popular      choosing the weight of a popularity
tuning       choosing a method and its settings on held-out queries
comparison   methods side by side; banks of different sizes
diagnosis    the hubs of a gallery, before and after a correction
chance       hubs against what chance gives
checkup      hubs, expectation, gain and recommendation in one verdict
drift        whether the bank of a corrector is still like the queries of today
quarantine   which items of a gallery look planted or broken
groups       counts of groups of items in a ranking
audits       how often groups of items are retrieved, before and after a correction
"""

from nnnorm.study.audits import Audit, audit
from nnnorm.study.chance import Hubs, Severity, judge_hubs
from nnnorm.study.checkup import Check, Measured, check
from nnnorm.study.comparison import (
    Ablation,
    Comparison,
    Result,
    Task,
    ablate,
    compare,
    make_result,
    report_gain,
)
from nnnorm.study.diagnosis import Diagnosis, diagnose
from nnnorm.study.drift import Drift, measure_drift
from nnnorm.study.evaluation import (
    Evaluation,
    count_above,
    evaluate,
    evaluate_ranking,
    mean_metrics,
    measure_gain,
)
from nnnorm.study.grid import Grid
from nnnorm.study.hubness import (
    HUB,
    compare_occurrences,
    count_occurrences,
    expect_occurrences,
    find_hubs,
    find_rescued,
    list_hubs,
    measure_hubness,
    robust_z,
)
from nnnorm.study.intervals import (
    Interval,
    binomial_half_width,
    interval_of_difference,
    interval_of_mean,
)
from nnnorm.study.quarantine import scan
from nnnorm.study.splits import (
    count_overlap,
    warn_of_mismatched_bank,
    warn_of_overlap,
)
from nnnorm.study.truth import Truth, clusters_of, open_truth, read_truth
from nnnorm.study.tuning import Cell, Select, Tuning, tune
