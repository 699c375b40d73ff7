"""Participants that are started, stopped, killed and suspended, and runs that are submitted one after another."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from random import Random

from benchmarks.federation import Federation, write_zeros
from benchmarks.starting import ATOLL, Process

PARTICIPANTS = 6
LEAST = 3
"""Minimum number of running participants, so that rounds continue."""
SUSPENDED_S = 4.0
KEPT_RUNS = 3
"""Number of ended runs that the operator keeps; older ones are deleted."""
MIB = 1 << 20

JOB = """
[job]
name = "soak"
rounds = {rounds}

[model]
initial = "{model}.safetensors"

[cohort]
size = 2
over_selection = 1.5
quorum = 1

[straggler]
report_window_s = 5.0
max_attempts = 100
retry_delay_s = 0.5

[optimiser]
name = "fedavgm"
lr = {lr}

[evaluation]
before_training = false
final = false
every = {every}
"""


@dataclass(frozen=True)
class Kind:
    """A kind of run: its model's name and size in float32 elements, and its rounds."""

    model: str
    elements: int
    rounds: int


KINDS = (Kind("small", 2560, 60), Kind("large", 5 * MIB // 4, 30))
"""Kinds in turn: updates inside their reports, and updates stored as files, which are overwritten later."""


@dataclass
class Counts:
    """Counts of actions on participants and runs."""

    started: int = 0
    stopped: int = 0
    killed: int = 0
    suspended: int = 0
    submitted: int = 0
    finished: int = 0
    cancelled: int = 0
    deleted: int = 0


@dataclass
class Crowd:
    """The participants: each has a lasting identity, and a process or none.

    Args:
        place: the server that they belong to.
        rng: chooses actions and participants.
        pause_s: duration of one "training".
    """

    place: Federation
    rng: Random
    pause_s: float
    counts: Counts = field(default_factory=Counts)
    _access: list[list[str]] = field(default_factory=list)
    _processes: dict[int, Process] = field(default_factory=dict)
    _suspended: dict[int, float] = field(default_factory=dict)

    def gather(self) -> None:
        """Enrol and start all participants."""
        tokens = self.place.call("token", "new", "--count", str(PARTICIPANTS))["tokens"]
        self._access = [["--join", token] for token in tokens]
        for participant in range(PARTICIPANTS):
            self._start(participant)

    @property
    def running(self) -> list[int]:
        """The participants with a process, suspended or not."""
        return sorted(participant for participant, process in self._processes.items() if process.poll() is None)

    def stir(self, now_s: float) -> None:
        """A fault of one participant."""
        for participant in [who for who, until in self._suspended.items() if until <= now_s]:
            del self._suspended[participant]
            self._signal(participant, signal.SIGCONT)
        running = self.running
        away = sorted(set(range(PARTICIPANTS)) - set(running))
        if away and (len(running) <= LEAST or self.rng.random() < 0.5):
            self._start(self.rng.choice(away))
            return
        participant = self.rng.choice([who for who in running if who not in self._suspended] or running)
        match self.rng.choices(("stop", "kill", "suspend"), (4, 4, 2))[0]:
            case "stop":
                self.counts.stopped += 1
                self._signal(participant, signal.SIGTERM)
            case "kill":
                self.counts.killed += 1
                self._signal(participant, signal.SIGKILL)
            case _:
                self.counts.suspended += 1
                self._suspended[participant] = now_s + SUSPENDED_S
                self._signal(participant, signal.SIGSTOP)

    def dismiss(self) -> None:
        """Wake suspended participants, so that they can end."""
        for participant in self._suspended:
            self._signal(participant, signal.SIGCONT)

    def _start(self, participant: int) -> None:
        self.counts.started += 1
        name = f"participant-{participant}"
        state = self.place.place / name
        arguments = ["client", "start", "benchmarks.participants:Paced", "--arg", f"pause_s={self.pause_s}"]
        access = [] if (state / "identity.json").exists() else self._access[participant]
        command = [*ATOLL, *arguments, *access, "--state", str(state)]
        self._processes[participant] = self.place.start_process(command, name)

    def _signal(self, participant: int, number: signal.Signals) -> None:
        process = self._processes[participant]
        if process.poll() is None:
            process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._suspended.pop(participant, None)


@dataclass
class Runs:
    """One run after the other; some are cancelled half-way, and old ones are deleted."""

    place: Federation
    rng: Random
    counts: Counts
    released: int = 0
    _run: str = ""
    _seen: int = 0
    _cancel_at: int = 0
    _ended: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        """Create the initial models."""
        for kind in KINDS:
            write_zeros(self.place.place / f"{kind.model}.safetensors", kind.elements)

    def look(self) -> None:
        """Count released rounds, and start the next run when one is over."""
        if not self._run:
            self._submit()
            return
        shown = next(run for run in self.place.call("run", "list") if run["run"] == self._run)
        self.released += shown["rounds_released"] - self._seen
        self._seen = shown["rounds_released"]
        if shown["status"] == "finished":
            self.counts.finished += 1
            self._go_on()
        elif shown["status"] != "running":
            raise RuntimeError(f"the run has {shown['status']}: {shown['reason']}")
        elif self._seen >= self._cancel_at:
            self._cancel()

    def _cancel(self) -> None:
        try:
            self.place.command("run", "cancel", self._run)
        except RuntimeError as error:
            if "has finished already" not in str(error):
                raise
            return  # since the last look; the next one counts it
        self.counts.cancelled += 1
        self._go_on()

    def _go_on(self) -> None:
        """As an operator with a limited disk: delete old runs, then start the next one."""
        self._ended.append(self._run)
        while len(self._ended) > KEPT_RUNS:
            self.place.call("run", "delete", self._ended.pop(0), "--yes")
            self.counts.deleted += 1
        self._submit()

    def _submit(self) -> None:
        kind = KINDS[self.counts.submitted % len(KINDS)]
        lr = 1.0 - 1e-4 * self.counts.submitted  # otherwise runs would create the same models and share them on disk
        job = JOB.format(model=kind.model, rounds=kind.rounds, lr=lr, every=self.rng.choice((0, 5)))
        (self.place.place / "job.toml").write_text(job)
        self._run = self.place.call("run", "submit", str(self.place.place / "job.toml"))["run"]
        self._seen = 0
        self._cancel_at = self.rng.randrange(10, kind.rounds) if self.rng.random() < 0.2 else kind.rounds + 1
        self.counts.submitted += 1
