"""Settings files: TOML is parsed into one frozen, validated value, or into one error that lists every problem.

Server jobs and silo jobs consist of ``Section`` classes. Needs pydantic (extras ``server`` and ``silo``).
"""

from atoll.settings.errors import Problem, SettingsFileError
from atoll.settings.load import MAX_FILE_BYTES, parse
from atoll.settings.section import Hint, Section, SectionProblems

__all__ = ["MAX_FILE_BYTES", "Hint", "Problem", "Section", "SectionProblems", "SettingsFileError", "parse"]
