"""Errors in settings files.

::

    SettingsFileError   a file that is too large, not UTF-8, not TOML, or has problems (all of them are listed)
"""

from __future__ import annotations

from dataclasses import dataclass

_SHOWN_VALUE_CHARS = 60


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a file.

    Attributes:
        key: dotted name, for example ``cohort.size``; empty for the file as a whole.
        value: the value found, written as in TOML; empty if there is none.
        message: what is wrong and what is allowed.
        line: 1-based line of the key, if it could be found.
    """

    key: str
    message: str
    value: str = ""
    line: int | None = None

    def describe(self, file: str) -> str:
        """One line: ``file:line: key = value: message``."""
        where = file if self.line is None else f"{file}:{self.line}"
        value = self.value if len(self.value) <= _SHOWN_VALUE_CHARS else f"{self.value[:_SHOWN_VALUE_CHARS]}..."
        subject = f"{self.key} = {value}" if value else self.key
        return ": ".join(part for part in (where, subject, self.message) if part)


class SettingsFileError(ValueError):
    """A file with problems, all of them listed, one per line.

    Attributes:
        exit_code: of a command that ends with it.
    """

    exit_code = 2

    def __init__(self, file: str, problems: tuple[Problem, ...]) -> None:
        self.file = file
        self.problems = problems
        lines = [problem.describe(file) for problem in problems]
        if len(lines) > 1:
            lines.insert(0, f"{file}: {len(problems)} problems")
        super().__init__("\n".join(lines))
