"""Results for people: `tables` for a terminal and Markdown, `plots` as pictures."""

from nnnorm.report.tables import (
    Table,
    tabulate_audit,
    tabulate_calibration,
    tabulate_check,
    tabulate_comparison,
    tabulate_diagnosis,
    tabulate_drift,
    tabulate_results,
    tabulate_scan,
    tabulate_tuning,
)
