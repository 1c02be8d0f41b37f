"""Results for people: tables and plots.

table    a table for a terminal and Markdown
tables   one function per result that makes a table of it, and a check in words
figure   what all plots share: colors, axes, legend, files
plots    results as pictures
hits     what queries find, in pictures or captions
"""

from nnnorm.report.figure import BLUE, ORANGE
from nnnorm.report.hits import GREEN, Hits, plot_hits
from nnnorm.report.plots import plot_audit
from nnnorm.report.table import Table
from nnnorm.report.tables import (
    tabulate_ablation,
    tabulate_audit,
    tabulate_check,
    tabulate_comparison,
    tabulate_diagnosis,
    tabulate_drift,
    tabulate_results,
    tabulate_scan,
    tabulate_tuning,
    tell_check,
)
