"""What people read of a run: one page, in one file, that needs nothing else."""

from tandemmq.consistency.report.report_view import render_report

__all__ = ["render_report"]
