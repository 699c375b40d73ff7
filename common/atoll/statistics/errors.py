"""Exceptions of statistics.

::

    StatisticsError     a ValueError
    ├── TableError      a table that cannot answer; the text names columns and types, and never a value
    ├── AnswersError    answers that contradict each other
    └── FindingsError   a model or a file without figures, or a figure that is not there
"""


class StatisticsError(ValueError):
    """Base of the errors of statistics."""


class TableError(StatisticsError):
    """A table that cannot answer. The text names columns and types, and never a value."""


class AnswersError(StatisticsError):
    """Answers that contradict each other; says what to do."""


class FindingsError(StatisticsError):
    """A model or a file without figures, or a figure that is not there; says what to do."""
