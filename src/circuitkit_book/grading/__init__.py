"""Collects the answers of a class: runs every student's functions again on fresh cases, and writes one row for each.

`python -m circuitkit_book grade FOLDER --csv marks.csv` is the command. Nothing leaves the machine.
"""

from circuitkit_book.grading.grader import Limits, Row, grade
from circuitkit_book.grading.mystery_files import open_mystery, write_mysteries
from circuitkit_book.grading.tables import class_page, write_csv

__all__ = ["Limits", "Row", "class_page", "grade", "open_mystery", "write_csv", "write_mysteries"]
