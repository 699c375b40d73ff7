"""An exported ledger: JSON lines that can be verified without a server.

A population has one line that describes it, followed by its charges in order. Each line is the canonical JSON of the
entry with its SHA-256 ``digest`` (over the entry without that field). A charge has the digest of the preceding line in
``previous``. If a limit was ever set, a last line has the limit, who set it and when, and the head at that time.
Verification finds lines that were changed, moved or removed. It can find lines cut off at the end, or a file rewritten
with new digests, only by comparing the last digest with one noted elsewhere; `atoll privacy ledger` prints it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from atoll.server.privacy.tally import RunTally, Tally, add_charge
from atoll.server.stores import Charge, Population, StoreDamagedError
from atoll.server.stores.hash_chain import Entry, canonical, digest_of

MAX_LINE_CHARS = 64 << 10
MAX_FLAWS = 100
"""Maximum number of flaws reported; a file with more is not an export."""


class _Line(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    population: str
    digest: str


class _First(_Line):
    adjacency: str
    created_at: float
    unit: str


class LimitLine(_Line):
    """The limit of a population (None: removed), and the charges after which it held."""

    charges: int
    head: str
    limit: dict[Literal["epsilon", "delta"], float] | None
    limited_at: float
    limited_by: str


class _Charge(_Line):
    attempt: int
    charged_at: float
    cost: dict[str, Any]
    mechanism: str
    previous: str
    round: int
    run: str
    seq: int


@dataclass(frozen=True)
class Flaw:
    """A flaw in a line, counted from 1; line 0 is the file as a whole."""

    line: int
    what: str


@dataclass(frozen=True)
class Verified:
    """A verified file: each population's readable charges, and every flaw found."""

    tallies: tuple[Tally, ...]
    adjacencies: Mapping[str, str]
    limits: Mapping[str, LimitLine]
    flaws: tuple[Flaw, ...]


def first_line(population: Population) -> str:
    """The line that describes a population; its charges follow it."""
    return _line(population.entry, population.root)


def limit_line(population: Population) -> str:
    """The line that follows a population's charges; empty if no limit was ever set."""
    if population.limited_at is None:
        return ""
    limit = None
    if population.epsilon is not None and population.delta is not None:
        limit = {"epsilon": float(population.epsilon), "delta": float(population.delta)}
    entry = {
        "charges": population.charges,
        "head": population.head,
        "limit": limit,
        "limited_at": float(population.limited_at),
        "limited_by": population.limited_by,
        "population": population.name,
    }
    return _line(entry, digest_of(entry))


def charge_line(charge: Charge) -> str:
    """The line of a charge.

    Raises:
        ValueError: if the charge belongs to no population.
    """
    if charge.digest is None:
        raise ValueError(f"{charge.of_round} was not charged to a population")
    return _line(charge.entry, charge.digest)


def line_as_it_stands(charge: Charge) -> str:
    """The line of a charge, even if its digest does not match; an unreadable charge has its fields as text."""
    try:
        return charge_line(charge)
    except (StoreDamagedError, ValueError, TypeError):
        return _line({name: str(value) for name, value in charge.exported.items()}, str(charge.digest))


def verified(lines: Iterable[str], heads: Mapping[str, str] | None = None) -> Verified:
    """Verify an export.

    Args:
        lines: the file's lines, each with its line break; none longer than ``MAX_LINE_CHARS``.
        heads: by population, the digest noted elsewhere that its charges must end with.
    """
    reading = _Reading()
    for number, line in enumerate(lines, start=1):
        reading.take(number, line)
        if len(reading.flaws) >= MAX_FLAWS:
            break
    for name, head in (heads or {}).items():
        reading.compare(name, head)
    return Verified(
        tuple(chain.tally for chain in reading.chains.values()),
        {name: chain.adjacency for name, chain in reading.chains.items()},
        {name: chain.limit for name, chain in reading.chains.items() if chain.limit is not None},
        tuple(reading.flaws),
    )


@dataclass
class _Chain:
    """One population as read so far: the number of the next charge, and the digest that it must refer to."""

    population: str
    adjacency: str
    digest: str
    seq: int = 0
    digests: set[str] = field(default_factory=set)
    runs: dict[str, RunTally] = field(default_factory=dict)
    limit: LimitLine | None = None

    @property
    def tally(self) -> Tally:
        return Tally(self.population, self.seq, self.digest, self.runs)


class _Reading:
    def __init__(self) -> None:
        self.chains: dict[str, _Chain] = {}
        self.flaws: list[Flaw] = []

    def take(self, number: int, line: str) -> None:
        """Take the next line."""
        self.flaws.extend(Flaw(number, what) for what in self._flaws_of(line))

    def compare(self, population: str, head: str) -> None:
        """Compare a population's last digest with the noted one."""
        chain = self.chains.get(population)
        if chain is None:
            self.flaws.append(Flaw(0, f"no charge of population {population} is here"))
        elif chain.digest != head:
            why = (
                "charges follow the one noted" if head in chain.digests else "the last charges are missing or replaced"
            )
            self.flaws.append(Flaw(0, f"population {population} ends with {chain.digest}, not with {head}: {why}"))

    def _flaws_of(self, line: str) -> Iterator[str]:
        if not line.endswith("\n"):
            yield "is cut off" if len(line) < MAX_LINE_CHARS else f"is longer than {MAX_LINE_CHARS} characters"
            return
        try:
            parsed = json.loads(line)
            read = _read(parsed)
            text = canonical(parsed)
        except (ValidationError, ValueError, RecursionError):
            yield "is not a line of a ledger"
            return
        claimed = parsed.pop("digest")
        if digest_of(parsed) != claimed:
            yield "was changed: its digest does not fit"
        elif text != line.removesuffix("\n"):
            yield "was changed: it is not written as it was exported"
        if isinstance(read, LimitLine):
            yield from self._limited(read)
        else:
            yield from self._placed(read) if isinstance(read, _Charge) else self._begun(read)

    def _limited(self, read: LimitLine) -> Iterator[str]:
        chain = self.chains.get(read.population)
        if chain is None:
            yield f"population {read.population} has no first line before it"
            return
        if (chain.seq, chain.digest) != (read.charges, read.head):
            yield f"the limit line names {read.charges} charges up to {read.head}, which are not the charges before it"
        if chain.limit is not None:
            yield f"the limit of population {read.population} is here twice"
        chain.limit = read

    def _begun(self, first: _First) -> Iterator[str]:
        if first.population in self.chains:
            yield f"population {first.population} begins again"
            return
        self.chains[first.population] = _Chain(first.population, first.adjacency, first.digest, 0, {first.digest})

    def _placed(self, read: _Charge) -> Iterator[str]:
        chain = self.chains.get(read.population)
        if chain is None:
            yield f"population {read.population} has no first line before it"
            chain = self.chains[read.population] = _Chain(read.population, "", read.previous, read.seq)
        if read.seq < chain.seq:
            yield f"charge {read.seq} of population {read.population} is out of its order, or here twice"
            return
        if read.seq > chain.seq:
            lost = f"charge {chain.seq}" if read.seq == chain.seq + 1 else f"charges {chain.seq} to {read.seq - 1}"
            yield f"{lost} of population {read.population} should come before it: removed, or out of order"
        elif read.previous != chain.digest:
            yield "does not follow the line before it in its population: that one was changed, or this one"
        chain.seq, chain.digest = read.seq + 1, read.digest
        chain.digests.add(read.digest)
        yield from _counted(chain, Charge.from_export(read.model_dump()))


def _read(parsed: object) -> _First | _Charge | LimitLine:
    if isinstance(parsed, dict) and "seq" in parsed:
        return _Charge.model_validate(parsed)
    if isinstance(parsed, dict) and "limited_by" in parsed:
        return LimitLine.model_validate(parsed)
    return _First.model_validate(parsed)


def _counted(chain: _Chain, charge: Charge) -> Iterator[str]:
    try:
        add_charge(chain.runs, charge)
    except StoreDamagedError:
        yield f"charge {charge.seq} does not say what it cost"


def _line(entry: Entry, digest: str) -> str:
    return canonical({**entry, "digest": digest}) + "\n"
