"""Settings files: parse TOML into one frozen, validated value, or raise one error that lists every problem.

Server jobs and silo jobs consist of ``Section`` classes. Needs pydantic (extras ``server`` and ``silo``).
"""

from atoll.settings.errors import Problem, SettingsFileError
from atoll.settings.load import MAX_FILE_BYTES, described, parse
from atoll.settings.section import Hint, Section, SectionProblems
from atoll.settings.write import given, to_toml

__all__ = [
    "MAX_FILE_BYTES",
    "Hint",
    "Problem",
    "Section",
    "SectionProblems",
    "SettingsFileError",
    "described",
    "given",
    "parse",
    "to_toml",
]
