"""The participant objects of one process: created when needed, and kept up to a limit."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

from atoll.client import Participant
from atoll.client.in_process import users_frame
from atoll.simulation.errors import SetupError

Make = Callable[[int | str], Participant]
"""Creates a participant, from its number in the population, or from its name if the population is named."""
KEEP_PARTICIPANTS = 4096
"""Default number of kept participant objects; the least recently used is closed first, and recreated when drawn."""


class ParticipantObjects:
    """Participants by name.

    Args:
        make: creates a participant.
        keep: number of kept objects.
    """

    def __init__(self, make: Make, keep: int = KEEP_PARTICIPANTS) -> None:
        self._make = make
        self._keep = keep
        self._kept: OrderedDict[str, Participant] = OrderedDict()

    @contextlib.contextmanager
    def used(self, name: str, seed: int | str, folder: Callable[[], Path] | None) -> Iterator[Participant]:
        """A participant for a task. One that keeps files is recreated each time: its next task may run elsewhere.

        Args:
            name: the participant's.
            seed: the factory's argument.
            folder: creates the folder of a participant that keeps files; None if that is not possible.

        Raises:
            SetupError: if it cannot be created, or keeps files where that is not possible.
        """
        found = self._kept.get(name)
        if found is not None:
            self._kept.move_to_end(name)
            yield found
            return
        found = self._made(seed)
        if keeps_files(found):
            with contextlib.closing(found):
                found.prepare(_existing(folder, seed, found)())
                yield found
            return
        self._kept[name] = found
        if len(self._kept) > self._keep:
            self._kept.popitem(last=False)[1].close()
        yield found

    def close(self) -> None:
        """Close every participant."""
        while self._kept:
            self._kept.popitem()[1].close()

    def _made(self, seed: int | str) -> Participant:
        try:
            found: object = self._make(seed)
        except Exception as error:
            at = users_frame(error)
            where = f"{Path(at.filename).name}:{at.lineno}"
            raise SetupError(f"participants({seed!r}) raised {type(error).__name__}: {error} ({where})") from error
        if not isinstance(found, Participant):
            raise SetupError(
                f"participants({seed!r}) gave a {type(found).__name__}; return an atoll.client.Participant"
            )
        return found


def keeps_files(participant: Participant) -> bool:
    """Whether a participant has a ``prepare`` of its own."""
    return type(participant).prepare is not Participant.prepare


def _existing(folder: Callable[[], Path] | None, seed: int | str, found: Participant) -> Callable[[], Path]:
    if folder is None:
        raise SetupError(
            f"participants({seed!r}) gave a {type(found).__name__}, which keeps files (prepare); a folder "
            "stays on one machine: use worker processes (workers=4), or keep nothing between tasks"
        )
    return folder
