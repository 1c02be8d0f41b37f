"""Results as tables (terminal and Markdown) and plots."""

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
