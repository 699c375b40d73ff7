"""``atoll client status``: the content of a state directory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from atoll.client._connection.identity import load as load_identity
from atoll.client._privacy.ledger import read_account
from atoll.client._privacy.promises import Promise, path_of, read_promises, total_of
from atoll.client._state.files import holder_of
from atoll.client._state.records import FOLDER
from atoll.client._state.usage import UsageLog
from atoll.client.errors import UsageError
from atoll.text.figures import SET_DIGITS, bound, counted, figure
from atoll.text.printable import printable


@dataclass(frozen=True)
class LedgerStatus:
    """One privacy ledger: epsilon spent on each ``unit``, its limit, its rounds and runs.

    An infinite epsilon is None.
    """

    name: str
    unit: str
    epsilon: float | None
    delta: float
    limit_epsilon: float | None
    rounds: int
    runs: tuple[str, ...]


@dataclass(frozen=True)
class PopulationStatus:
    """The promises of all runs of one population of one server together; an infinite epsilon is None."""

    server: str
    population: str
    epsilon: float | None
    delta: float
    runs: tuple[str, ...]


@dataclass(frozen=True)
class PromisesStatus:
    """The promises of all runs together, and their limits; infinite values are None."""

    epsilon: float | None
    limit_epsilon: float | None
    delta: float
    limit_delta: float | None
    runs: int
    populations: tuple[PopulationStatus, ...]


@dataclass(frozen=True)
class Status:
    """The content of a participant's state directory; ``running_pid`` is None if no process uses it."""

    state: str
    participant: str
    organisation: str
    kind: str
    server: str
    certificate_until: str
    certificate_remaining_s: float
    running_pid: int | None
    rounds_24h: int
    bytes_24h: int
    cached_models: int
    cached_bytes: int
    privacy: tuple[LedgerStatus, ...]
    promises: PromisesStatus | None

    def as_dict(self) -> dict[str, object]:
        """JSON-friendly."""
        return asdict(self)


def status_of(state: Path) -> Status:
    """Read a state directory.

    Raises:
        UsageError: if it has no identity.
    """
    identity = load_identity(state)
    if identity is None:
        raise UsageError(f"no identity in {state}; start a client with --join first, or give another --state")
    until = identity.validity[1]
    spent = UsageLog(state).spent()
    blobs = list(_sizes(state / "blobs"))
    return Status(
        state=str(state),
        participant=identity.participant,
        organisation=identity.organisation,
        kind=identity.kind,
        server=identity.server_address,
        certificate_until=until.isoformat(),
        certificate_remaining_s=(until - datetime.now(UTC)).total_seconds(),
        running_pid=holder_of(state),
        rounds_24h=spent.rounds,
        bytes_24h=spent.bytes,
        cached_models=len(blobs),
        cached_bytes=sum(blobs),
        privacy=tuple(map(_ledger, sorted(set((state / FOLDER).glob("*.json")) - {path_of(state)}))),
        promises=_promises(path_of(state)),
    )


def _sizes(folder: Path) -> Iterator[int]:
    """The sizes of a folder's files. A running client may rename or remove one meanwhile, which is left out."""
    for path in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            yield path.stat().st_size


def _promises(path: Path) -> PromisesStatus | None:
    record = read_promises(path)
    if record is None:
        return None
    groups: dict[tuple[str, str], list[Promise]] = {}
    for one in record.promises:
        groups.setdefault((one.server, one.population), []).append(one)
    return PromisesStatus(
        epsilon=_finite(record.total.epsilon),
        limit_epsilon=_finite(record.limit.epsilon),
        delta=record.total.delta,
        limit_delta=_finite(record.limit.delta),
        runs=record.runs,
        populations=tuple(
            PopulationStatus(
                server,
                population,
                _finite(total_of(ones).epsilon),
                total_of(ones).delta,
                tuple(dict.fromkeys(one.run_name for one in ones)),
            )
            for (server, population), ones in groups.items()
        ),
    )


def _ledger(path: Path) -> LedgerStatus:
    account = read_account(path)
    if account is None:
        raise UsageError(f"{path} is gone")
    return LedgerStatus(
        name=path.stem,
        unit=account.unit,
        epsilon=_finite(account.epsilon),
        delta=account.limit.delta,
        limit_epsilon=_finite(account.limit.epsilon),
        rounds=account.rounds,
        runs=tuple(dict.fromkeys(entry.run_name for entry in account.entries)),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def describe(status: Status) -> str:
    """The status as lines of text."""
    hours = status.certificate_remaining_s / 3600
    certificate = f"valid for {hours:.1f} h" if hours > 0 else "EXPIRED: enrol again with a new join token"
    running = "not running" if status.running_pid is None else f"running as process {status.running_pid}"
    rows = (
        ("participant", f"{status.participant} ({status.kind}, {status.organisation})"),
        ("server", status.server),
        ("certificate", f"{certificate} (until {status.certificate_until})"),
        ("client", running),
        ("last 24 hours", f"{counted(status.rounds_24h, 'round')}, {status.bytes_24h / 1e6:.1f} MB"),
        ("cached models", f"{status.cached_models}, {status.cached_bytes / 1e6:.1f} MB"),
        *(("privacy", _spent(ledger)) for ledger in status.privacy),
        *(("promised", line) for line in _promised(status.promises)),
    )
    return "\n".join(f"{name:<14} {printable(value)}" for name, value in rows)


def _promised(promises: PromisesStatus | None) -> Iterator[str]:
    if promises is None:
        return
    epsilon = f"epsilon {_spent_of(promises.epsilon)} of {_limit(promises.limit_epsilon)}"
    delta = f"delta {bound(promises.delta, 3)} of {_limit(promises.limit_delta)}"
    yield f"{epsilon}, {delta}, by {counted(promises.runs, 'run')} together"
    for one in promises.populations:
        server = f"{one.server[:15]}…" if one.server.startswith("sha256:") else one.server
        cost = f"epsilon {_spent_of(one.epsilon)}, delta {bound(one.delta, 3)}"
        yield f"  {one.population or 'earlier populations'} of {server}: {cost}, by {', '.join(one.runs)}"


def _spent_of(epsilon: float | None) -> str:
    return "unlimited" if epsilon is None else bound(epsilon, 3)


def _limit(value: float | None) -> str:
    return "unlimited" if value is None else figure(value, SET_DIGITS)


def _spent(ledger: LedgerStatus) -> str:
    spent = f"epsilon {_spent_of(ledger.epsilon)} of {_limit(ledger.limit_epsilon)} at delta {figure(ledger.delta)}"
    runs = ", ".join(ledger.runs) or "no run"
    return f"{ledger.name}: {spent} spent on each {ledger.unit}, in {counted(ledger.rounds, 'round')} of {runs}"
