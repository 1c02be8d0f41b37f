"""Results as tables (terminal and Markdown) and plots."""

from nnnorm.report.tables import Table
