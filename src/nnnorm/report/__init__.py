"""Results for people: tables and plots.

table    a table for a terminal, Markdown and LaTeX
tables   one function per result that makes a table of it, and a check in words
figure   what all plots share: colors, axes, legend, files
plots    results as pictures
sheet    contact sheets: what queries find, in pictures or captions
"""

from nnnorm.report.plots import plot_audit
from nnnorm.report.sheet import (
    BLUE,
    GREEN,
    ORANGE,
    TILE,
    Colour,
    Hits,
    draw_hits,
    frame_right,
    read_tile,
)
from nnnorm.report.table import Table, make_document
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
