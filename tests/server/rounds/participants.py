"""Simulated participants: honest but clumsy. They outlive the server's crashes."""

from collections.abc import Callable
from random import Random

from atoll.server.rounds import (
    Accepted,
    Declined,
    Event,
    MemberFailed,
    Rejected,
    Reported,
    RoundKey,
    RoundKind,
    RunState,
    UpdateRef,
    WentSilent,
)

Upload = tuple[RoundKey, str]


class Participants:
    """Their reports; each is remembered until its receipt arrives."""

    def __init__(self, rng: Random, spools: dict[Upload, UpdateRef]) -> None:
        self.rng = rng
        self.spools = spools
        self.unacknowledged: dict[Upload, Reported] = {}
        self.bad: set[str] = set()  # digests of updates that no fold will take

    def behave(self, state: RunState, key: RoundKey, participant: str, clumsy: bool) -> list[Event]:
        """Return the messages that an invited participant sends at some time, in any order."""
        accepted = Accepted(key, participant)
        if not clumsy:
            return [accepted, self.report(state, key, participant)]
        silent = WentSilent(key, participant, "connection lost")
        ways: list[Callable[[], list[Event]]] = [
            list,
            lambda: [Declined(key, participant, "on battery")],
            lambda: [accepted, MemberFailed(key, participant, "out of memory")],
            lambda: [accepted, silent],
            lambda: [accepted, silent, self.report(state, key, participant)],
            lambda: [accepted, Rejected(key, participant, "wrong layout")],
            lambda: [self.report(state, key, participant), Rejected(key, participant, "norm too large")],
            lambda: [self.report(state, key, participant, flawed=True)],
            lambda: [self.report(state, key, participant, bad=True)],
            lambda: [self.report(state, key, "px")],
        ]
        return self.rng.choice(ways)()

    def report(
        self, state: RunState, key: RoundKey, participant: str, flawed: bool = False, bad: bool = False
    ) -> Reported:
        """A report, uploaded and remembered; when it was made before, the same one again."""
        known = self.unacknowledged.get((key, participant))
        if known is not None:
            return known
        rnd = state.round
        member = rnd.roster.get(participant) if rnd and rnd.key == key else None
        declared = member.declared_weight if member else 1
        rng = Random(f"{key.round}.{key.attempt}/{participant}")  # training is a function of round and participant
        weight = declared + 1 if flawed else rng.randint(1, declared)
        ref = None
        if flawed or rnd is None or rnd.kind is RoundKind.TRAIN:
            ref = UpdateRef(key, participant, f"{key}/{participant}/{rng.randrange(4)}", weight, "n0")
            # The spool holds one upload for each key: a second, different one is refused there and gets no further.
            ref = self.spools.setdefault((key, participant), ref)
            weight = ref.weight
            if bad:
                self.bad.add(ref.digest)
        report = Reported(key, participant, ref, weight, (("loss", 0.5),))
        self.unacknowledged[key, participant] = report
        return report

    def forget(self, key: RoundKey, participant: str) -> None:
        """Forget a report after its receipt or a stop."""
        self.unacknowledged.pop((key, participant), None)
