"""Golden transcripts of the round engine: files that list events, each followed by the engine's reaction.

A line without indentation is an event, an indented line is output, and ``#`` begins a comment. ``play`` runs the events
of a file and writes its output again. After a change of the engine, or to add a file, run

    python -m tests.server.rounds.transcript --rewrite

and review the difference.

The first line that is not a comment gives the policy, for example ``policy cohort=2 over_selection=1.5 rounds=1``. The
settings are named as in ``StragglerPolicy``, ``LatePolicy`` and ``RunPolicy``, with ``cohort`` for ``cohort_size``
and ``late`` for ``mode``; ``best=eval/loss:min`` and ``stop=eval/loss:min:2`` (patience 2) judge models. Rounds are
shown as operators see them: ``1`` is the first round, ``1.2`` its second attempt. An event is about the live round
unless it ends in ``@`` and a round: ``reported pc 10 @1``. A cohort has weights after a colon, and after an equals sign
the name under which the job requires the member: ``drawn pa:20 pb=north``.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from atoll.server.rounds import (
    Accepted,
    Aggregate,
    Aggregated,
    BudgetSpent,
    CancelRequested,
    Charged,
    CohortDrawn,
    DeadlinePassed,
    Declined,
    EffectFailed,
    Event,
    ExtendRequested,
    LateMode,
    LatePolicy,
    MemberFailed,
    Patience,
    PauseRequested,
    Published,
    Rejected,
    Reported,
    ResumeRequested,
    RetryDue,
    RoundError,
    RoundGrid,
    RoundKey,
    RoundKind,
    RoundPrepared,
    RunPolicy,
    RunState,
    Started,
    StragglerPolicy,
    SumLost,
    UpdateRef,
    WentSilent,
    initial,
    replay,
    resume,
    step,
)
from atoll.server.rounds.judging import Criterion, Mode, StopRule
from tests.server.rounds.transcript_output import changes, effect_line

FOLDER = Path(__file__).parent / "transcripts"
WINDOW_S = 30.0
GRID = RoundGrid(fraction_bits=20, max_abs=32.0, weight_shift=0, weight_total_bits=24)


def paths() -> list[Path]:
    return sorted(FOLDER.glob("*.txt"))


def play(text: str) -> str:
    """The transcript with the engine's current output."""
    lines: list[str] = []
    script: Script | None = None
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        lines.append(line)
        if not line or line.startswith("#"):
            continue
        if script is None:
            script = Script(policy_of(line))
            continue
        lines += [f"  {said}" for said in script.run(line)]
    return "\n".join(lines) + "\n"


def policy_of(line: str) -> RunPolicy:
    word, *settings = line.split()
    if word != "policy":
        raise ValueError(f"{line!r}: the first line must give the policy")
    given = dict(setting.split("=") for setting in settings)
    late = LatePolicy(
        LateMode(given.pop("late", "drop")), int(given.pop("max_staleness", 1)), float(given.pop("exponent", 1.0))
    )
    straggler = StragglerPolicy(
        cohort_size=int(given.pop("cohort")),
        over_selection=float(given.pop("over_selection", 1.0)),
        patience=Patience(given.pop("patience", "goal")),
        quorum=int(given.pop("quorum", 1)),
        refused_count=given.pop("refused_count", "no") == "yes",
        late=late,
        max_attempts=int(given.pop("max_attempts", 2)),
        retry_delay_s=5.0,
    )
    policy = RunPolicy(
        int(given.pop("rounds", 1)),
        straggler,
        evaluate_every=int(given.pop("evaluate_every", 0)),
        final_evaluation=given.pop("final_evaluation", "no") == "yes",
        best=_criterion(given.pop("best", "")),
        stop=_stop_rule(given.pop("stop", "")),
    )
    if given:
        raise ValueError(f"{line!r}: unknown settings {sorted(given)}")
    return policy


def _criterion(text: str) -> Criterion | None:
    """``eval/loss:min``."""
    metric, _, mode = text.partition(":")
    return Criterion(metric, Mode(mode)) if text else None


def _stop_rule(text: str) -> StopRule | None:
    """``eval/loss:min:2``, with the patience last."""
    criterion, _, patience = text.rpartition(":")
    found = _criterion(criterion)
    return None if found is None else StopRule(found, int(patience))


def key_of(label: str) -> RoundKey:
    number, _, attempt = label.partition(".")
    return RoundKey(int(number) - 1, int(attempt or 1) - 1)


@dataclass
class Script:
    """A run that takes one line after another; each event comes a second after the one before."""

    policy: RunPolicy
    now: float = 0.0
    log: list[tuple[Event, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start = initial("r1", self.policy, "m0")
        self.state: RunState = self.start
        self._asked: Aggregate | None = None
        self._sums: dict[str, Aggregated] = {}

    def run(self, line: str) -> Iterator[str]:
        """Return the result of the line: the changed state, then the effects in order."""
        word, _, rest = line.partition(" ")
        if word == "clock":
            self.now += float(rest)
            return
        if word == "restart":
            yield from self._restart()
            return
        self.now += 1
        rest, _, label = rest.partition("@")
        event = self._event(word, rest.strip(), label)
        try:
            result = step(self.state, event, self.now)
        except RoundError as error:
            yield f"{type(error).__name__}: {error}"
            return
        yield from changes(self.state, result.state)
        if result.state is not self.state:
            self.log.append((event, self.now))
        self.state = result.state
        for effect in result.effects:
            if isinstance(effect, Aggregate):
                self._asked = effect
            yield effect_line(effect)

    def _restart(self) -> Iterator[str]:
        """A crash: the state is replayed from the log, and pending effects are requested again."""
        replayed = replay(self.start, self.log)
        if replayed != self.state:
            raise AssertionError(f"replay gave {replayed}, the run was {self.state}")
        for effect in resume(self.state, self.now):
            yield effect_line(effect)

    def _event(self, word: str, rest: str, label: str) -> Event:
        if word in _OPERATOR:
            return _OPERATOR[word](rest)
        live = self.state.round
        if not label and live is None:
            raise ValueError(f"{word!r}: no round has begun")
        key = key_of(label) if label or live is None else live.key
        name, _, detail = rest.partition(" ")
        if word in _FROM_MEMBERS:
            return _FROM_MEMBERS[word](key, name, detail)
        if word in _ABOUT_ROUND:
            return _ABOUT_ROUND[word](key, rest)
        return self._answer(word, key, rest) if word in _ANSWERS else self._with_update(word, key, name, detail)

    def _answer(self, word: str, key: RoundKey, rest: str) -> Event:
        if word == "aggregated":
            return self._sum(rest)
        if word == "drawn":
            named = [member.partition("=") for member in rest.split()]
            members = [member.partition(":") for member, _, _ in named]
            cohort = tuple((name, int(weight or 10)) for name, _, weight in members)
            required = tuple((name, job_name) for (name, _, _), (_, _, job_name) in zip(members, named, strict=True))
            return CohortDrawn(key, cohort, len(cohort), "uniform", 7, tuple(one for one in required if one[1]))
        live = self.state.round
        train = live is not None and live.kind is RoundKind.TRAIN
        return RoundPrepared(key, WINDOW_S, self.now + WINDOW_S, GRID if train else None)

    def _with_update(self, word: str, key: RoundKey, participant: str, detail: str) -> Event:
        if word == "reported":
            return self._report(key, participant, detail)
        if word == "sum_lost":
            return SumLost(key, detail, (self._update(key, participant, 10, ""),))
        raise ValueError(f"{word!r} is no event of a transcript")

    def _report(self, key: RoundKey, participant: str, detail: str) -> Reported:
        """``WEIGHT [DIGEST]`` in a train round, ``WEIGHT NAME=VALUE`` in an evaluate round."""
        weight, _, extra = detail.partition(" ")
        if "=" in extra:
            name, _, value = extra.partition("=")
            return Reported(key, participant, None, int(weight), ((name, float(value)),))
        return Reported(key, participant, self._update(key, participant, int(weight), extra), int(weight))

    @staticmethod
    def _update(key: RoundKey, participant: str, weight: int, digest: str) -> UpdateRef:
        return UpdateRef(key, participant, digest or f"{participant}-{key}", weight, "n0")

    def _sum(self, digest: str) -> Aggregated:
        """The answer to the latest `Aggregate`; an earlier digest repeats the same answer."""
        if digest not in self._sums:
            asked = self._asked
            if asked is None:
                raise ValueError("no sum was asked for")
            self._sums[digest] = Aggregated(asked.key, asked.total_weight, len(asked.contributions), digest)
        return self._sums[digest]


_ANSWERS = frozenset({"drawn", "prepared", "aggregated"})
_OPERATOR: dict[str, Callable[[str], Event]] = {
    "started": lambda _: Started(),
    "pause": lambda _: PauseRequested(),
    "resume": lambda _: ResumeRequested(),
    "cancel": CancelRequested,
    "extend": lambda rounds: ExtendRequested(int(rounds)),
}
_FROM_MEMBERS: dict[str, Callable[[RoundKey, str, str], Event]] = {
    "accepted": lambda key, name, _: Accepted(key, name),
    "declined": Declined,
    "failed": MemberFailed,
    "silent": WentSilent,
    "rejected": Rejected,
}
_ABOUT_ROUND: dict[str, Callable[[RoundKey, str], Event]] = {
    "deadline": lambda key, _: DeadlinePassed(key),
    "charged": lambda key, rest: Charged(key, _metrics(rest)),
    "published": lambda key, rest: Published(key, _metrics(rest)),
    "retry": lambda key, _: RetryDue(key),
    "budget_spent": BudgetSpent,
    "effect_failed": lambda key, rest: EffectFailed(key, rest.partition(" ")[0], rest.partition(" ")[2]),
}


def _metrics(rest: str) -> tuple[tuple[str, float], ...]:
    """``NAME=VALUE ...``: the metrics that judge models."""
    pairs = (word.partition("=") for word in rest.split())
    return tuple((name, float(value)) for name, _, value in pairs)


def main() -> None:
    if sys.argv[1:] != ["--rewrite"]:
        sys.exit("usage: python -m tests.server.rounds.transcript --rewrite")
    for path in paths():
        path.write_text(play(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
