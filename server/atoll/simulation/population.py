"""The participants' names, and the factory argument of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from atoll.simulation.errors import SetupError

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


class Population:
    """Numbered participants, or named ones.

    Numbered participants are called ``p000`` to ``p999``, with as many digits as the largest number needs, and created
    from their number. Named ones are created from their name: with the ids of a deployment's participants, the draws
    equal that deployment's.

    Args:
        of: the number of participants, or their names.

    Raises:
        SetupError: for fewer than one, invalid names, or duplicates.
    """

    def __init__(self, of: int | Sequence[str]) -> None:
        if isinstance(of, int) and not isinstance(of, bool):
            if of < 1:
                raise SetupError(f"population = {of}: give at least 1 participant")
            digits = len(str(of - 1))
            self.names = [f"p{number:0{digits}d}" for number in range(of)]
            self._named = False
        elif isinstance(of, Sequence) and not isinstance(of, str) and all(isinstance(name, str) for name in of):
            for name in of:
                if not _NAME.fullmatch(name):
                    raise SetupError(f"population: {name!r} is not a name; use 1 to 128 of A-Za-z0-9._-, no dot first")
            self.names = list(of)
            self._named = True
        else:
            raise SetupError(f"population = {of!r}: give a whole number, or a list of names")
        self._numbers = {name: number for number, name in enumerate(self.names)}
        if not self.names or len(self._numbers) < len(self.names):
            raise SetupError(f"population: {len(self.names)} names, {len(self._numbers)} different; name each once")

    @staticmethod
    def names_in(file: Path) -> list[str]:
        """The names in a text file, one per line; empty lines and lines that begin with # are skipped.

        Raises:
            SetupError: if the file cannot be read, or has no name.
        """
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise SetupError(
                f"population: {str(file)!r} is neither a number nor a readable file ({error}); give the number of "
                "participants, or a file with the id of one in each line"
            ) from error
        names = [line for line in lines if line and not line.startswith("#")]
        if not names:
            raise SetupError(f"population: {file} has no name; write one in each line")
        return names

    def __len__(self) -> int:
        return len(self.names)

    def number_of(self, name: str) -> int:
        """The index of a participant in the population, from 0."""
        return self._numbers[name]

    def seed_of(self, name: str) -> int | str:
        """The number or name from which a participant is created."""
        return name if self._named else self._numbers[name]

    def seeds(self) -> Iterator[tuple[str, int | str]]:
        """Every participant with its factory argument."""
        return ((name, self.seed_of(name)) for name in self.names)
