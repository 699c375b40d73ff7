"""What ``atoll client status`` shows."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from atoll.client import identity as identities
from atoll.client.errors import UsageError
from atoll.client.files import holder_of
from atoll.client.privacy.ledger import FOLDER, read_account
from atoll.client.usage import UsageLog
from atoll.wire.figures import SET_DIGITS, bound, counted, figure


@dataclass(frozen=True)
class LedgerStatus:
    """What one ledger says: spent on each ``unit``, out of what limit, in how many rounds of which runs.

    An epsilon without end is None.
    """

    name: str
    unit: str
    epsilon: float | None
    delta: float
    limit_epsilon: float | None
    rounds: int
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Status:
    """A participant's state directory at a glance; ``running_pid`` is None if no process works in it."""

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

    def as_dict(self) -> dict[str, object]:
        """JSON-friendly."""
        return asdict(self)


def status_of(state: Path) -> Status:
    """Read a state directory.

    Raises:
        UsageError: if nobody has enrolled there.
    """
    identity = identities.load(state)
    if identity is None:
        raise UsageError(f"nobody has enrolled in {state}; start a client with --join first, or name another --state")
    until = identity.validity[1]
    spent = UsageLog(state).spent()
    blobs = [path.stat().st_size for path in (state / "blobs").glob("*")]
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
        privacy=tuple(map(_ledger, sorted((state / FOLDER).glob("*.json")))),
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
    """Lines for people."""
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
    )
    return "\n".join(f"{name:<14} {value}" for name, value in rows)


def _spent(ledger: LedgerStatus) -> str:
    epsilon = "unlimited" if ledger.epsilon is None else bound(ledger.epsilon, 3)
    limit = "unlimited" if ledger.limit_epsilon is None else figure(ledger.limit_epsilon, SET_DIGITS)
    spent = f"epsilon {epsilon} of {limit} at delta {figure(ledger.delta)}"
    runs = ", ".join(ledger.runs) or "no run"
    return f"{ledger.name}: {spent} spent on each {ledger.unit}, in {counted(ledger.rounds, 'round')} of {runs}"
