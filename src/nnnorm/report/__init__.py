"""Results for people: tables and plots.

table    a table for a terminal and Markdown
tables   one function per result that makes a table of it
verdicts a check in words
figure   what all plots share: colours, axes, legend, files
plots    results as pictures
audits   tables and plots of an audit
hits     what queries find, in pictures or captions
"""

from nnnorm.report.audits import plot_audit, tabulate_audit
from nnnorm.report.figure import BLUE, ORANGE
from nnnorm.report.hits import GREEN, Hits, plot_hits
from nnnorm.report.table import Table
from nnnorm.report.tables import (
    tabulate_ablation,
    tabulate_comparison,
    tabulate_diagnosis,
    tabulate_drift,
    tabulate_results,
    tabulate_scan,
    tabulate_tuning,
)
from nnnorm.report.verdicts import tabulate_check, tell_check
