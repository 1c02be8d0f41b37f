"""Results for people: tables and plots.

table    a table for a terminal, Markdown and LaTeX
tables   one function per result that makes a table of it
verdicts a check in words
plots    results as pictures
audits   tables and plots of an audit
"""

from nnnorm.report.audits import plot_audit, tabulate_audit
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
