"""Results for people: tables and plots.

tables   results as tables for a terminal, Markdown and LaTeX
plots    results as pictures
audits   tables and plots of an audit
"""

from nnnorm.report.audits import plot_audit, tabulate_audit
from nnnorm.report.tables import (
    Table,
    tabulate_ablation,
    tabulate_comparison,
    tabulate_diagnosis,
    tabulate_results,
    tabulate_tuning,
)

__all__ = [
    "Table",
    "plot_audit",
    "tabulate_ablation",
    "tabulate_audit",
    "tabulate_comparison",
    "tabulate_diagnosis",
    "tabulate_results",
    "tabulate_tuning",
]
