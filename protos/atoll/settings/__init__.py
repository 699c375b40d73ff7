"""Files of settings: TOML in, one frozen and wholly valid value out, or one error that lists every problem.

Server jobs and silo jobs are both made of ``Section`` classes; needs pydantic (extras ``server`` and ``silo``).
"""

from atoll.settings.errors import Problem, SettingsFileError
from atoll.settings.load import MAX_FILE_BYTES, parse
from atoll.settings.section import Hint, Section, SectionProblems

__all__ = ["MAX_FILE_BYTES", "Hint", "Problem", "Section", "SectionProblems", "SettingsFileError", "parse"]
