"""A report on any model in one call: what its heads do, how they feed each other, what it converts to."""

from circuitkit.reports.document import ModelReport, report

__all__ = ["ModelReport", "report"]
