"""The participants' objects of one process: made when they are needed, and kept up to a bound."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

from atoll.client import Participant
from atoll.client.in_process import users_frame
from atoll.simulation.errors import SetupError

Make = Callable[[int | str], Participant]
"""Makes a participant, from its number in the population, or from its name if the population is named."""
KEEP_PARTICIPANTS = 4096
"""Participants' objects that a process keeps; the one used longest ago is closed first, and made again when drawn."""


class ParticipantObjects:
    """Participants by name.

    Args:
        make: makes a participant.
        keep: objects that are kept.
    """

    def __init__(self, make: Make, keep: int = KEEP_PARTICIPANTS) -> None:
        self._make = make
        self._keep = keep
        self._kept: OrderedDict[str, Participant] = OrderedDict()

    @contextlib.contextmanager
    def used(self, name: str, seed: int | str, folder: Callable[[], Path] | None) -> Iterator[Participant]:
        """A participant at work. One that keeps files is made anew each time: the next may be another process's.

        Args:
            name: the participant's.
            seed: what it is made from.
            folder: makes the folder of one that keeps files; None where none can.

        Raises:
            SetupError: if it cannot be made, or keeps files where it cannot.
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
