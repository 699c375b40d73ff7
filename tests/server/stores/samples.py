"""Records shared by the tests of the stores."""

from typing import Protocol

from atoll.server.identity import ParticipantKind
from atoll.server.stores import LoggedEvent, Participant, Report, Round, Run, Store

NOW = 1_800_000_000.123456
RUN = "rabcdefghijkl"
ALICE, BOB = "paaaaaaaaaaaa", "pbbbbbbbbbbbb"
DIGEST, OTHER_DIGEST = "0" * 64, "1" * 64


class OpenStore(Protocol):
    """Opens a test's state; call it again for a second view."""

    def __call__(self, *, primary: bool = True) -> Store: ...


def run(run_id: str = RUN, created_at: float = NOW) -> Run:
    return Run(run_id, "digits", "rounds = 20", b"layout\x00", DIGEST, DIGEST, 20, "running", "op", created_at)


def participant(name: str) -> Participant:
    return Participant(name, "acme", ParticipantKind.EDGE, NOW)


def attempt(round_number: int = 0, attempt_number: int = 0) -> Round:
    return Round(RUN, round_number, attempt_number, "train", "open", NOW)


def events(start: int, count: int) -> list[LoggedEvent]:
    return [LoggedEvent(seq, NOW + seq, "Started", f'{{"n":{seq}}}') for seq in range(start, start + count)]


def report(round_number: int = 0) -> Report:
    return Report(RUN, round_number, 0, ALICE, DIGEST, "ab" * 16, 100, "main", NOW, "counted")
