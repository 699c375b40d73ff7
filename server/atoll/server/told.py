"""What the log is told of an error."""

from __future__ import annotations


class Told(str):
    """What the log is told of an error; the line carries ``code`` beside it."""

    __slots__ = ("code",)
    code: str

    def __new__(cls, text: str, code: str) -> Told:
        """Text with its error's code."""
        made = super().__new__(cls, text)
        made.code = code
        return made
