"""Contents of a run's page, made from the server's answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from atoll.console.charts import Chart, chart
from atoll.console.paging import Page, paged
from atoll.operator import RoundSummary, RunDetail, RunSummary
from atoll.operator.history import ENDED_PHASES
from atoll.operator.run_job import promises
from atoll.operator.statistics import has_findings
from atoll.server.control.curves import latest, panels, shown
from atoll.server.control.names import names_of
from atoll.server.control.never_counted import never_counted, sometimes_missing
from atoll.server.control.tile import Tile
from atoll.server.control.words import duration, round_label
from atoll.text.figures import counted

ROUNDS_PER_PAGE = 50
MAX_CHARTS = 8
MAX_ABSENT = 20


@dataclass(frozen=True)
class Absent:
    """A participant that recently did not count in ``missed`` of the ``invited`` rounds that it was invited to."""

    participant: str
    name: str
    missed: int
    invited: int
    status: str
    detail: str


@dataclass(frozen=True)
class RunView:
    """A run as its page shows it.

    Attributes:
        rounds: a page of its attempts at rounds, the newest first.
        metrics: the metrics that the table of rounds has columns for.
        absent: at most ``MAX_ABSENT`` participants that did not count in the newest rounds; none if the draw is secret.
        recent: the number of newest rounds that ``absent`` is about.
        secret: whether its draws are secret.
        private: whether its job has a privacy section, or cannot be read here.
        statistics: whether it has figures of statistics.
    """

    detail: RunDetail
    tiles: tuple[Tile, ...]
    charts: tuple[Chart, ...]
    rounds: Page[RoundSummary]
    metrics: tuple[str, ...]
    absent: tuple[Absent, ...]
    recent: int
    secret: bool
    private: bool
    statistics: bool

    def value(self, item: RoundSummary, metric: str) -> str:
        """A metric of a round, to four places; empty if it was not measured."""
        found = latest(item, metric)
        return "" if found is None else f"{found:.4f}"


def run_view(detail: RunDetail, recent: Sequence[RoundSummary], number: int) -> RunView:
    """A run's page, with page ``number`` of its rounds; ``recent`` are the newest ended ones with their members."""
    said = promises(detail)
    page = paged(tuple(reversed(detail.rounds)), number, ROUNDS_PER_PAGE)
    return RunView(
        detail,
        tuple(tiles(detail)),
        tuple(map(chart, panels(detail.rounds)[:MAX_CHARTS])),
        page,
        shown(page.items, detail.best.metric if detail.best is not None else ""),
        () if said.secret else absent(recent),
        len(recent),
        said.secret,
        said.private,
        has_findings(detail),
    )


def absent(recent: Sequence[RoundSummary]) -> tuple[Absent, ...]:
    """Participants that did not count in all or some of these rounds; those that never counted come first."""
    names = names_of(recent)
    never = [
        Absent(one.participant, names[one.participant], one.rounds, one.rounds, one.status, one.detail)
        for one in never_counted(recent)
    ]
    sometimes = [
        Absent(one.participant, names[one.participant], one.missed, one.invited, one.status, one.detail)
        for one in sometimes_missing(recent)
    ]
    return tuple([*never, *sometimes][:MAX_ABSENT])


def tiles(detail: RunDetail) -> Iterator[Tile]:
    """The headline figures."""
    run = detail.run
    yield Tile("rounds released", f"{run.rounds_released}", run.planned)
    if detail.rounds and not run.ended:
        yield _in_work(detail.rounds[-1])
    if detail.best is not None:
        best = detail.best
        yield Tile(f"best {best.metric}", f"{best.value:.4g}", f"after {counted(best.round, 'round')}")
    times = [item.duration_s for item in detail.rounds if item.released and item.duration_s is not None]
    if times:
        yield Tile("last round", duration(times[-1]), f"slowest {duration(max(times))}")
    if run.finished_at is not None:
        yield Tile("whole run", duration(max(0.0, run.finished_at - run.created_at)))
    else:
        yield Tile("connected now", f"{detail.connected}", "participants")


def _in_work(item: RoundSummary) -> Tile:
    if item.phase in ENDED_PHASES:
        return Tile("newest round", round_label(item), item.phase)
    wanted = f" of {item.wanted} wanted" if item.wanted else ""
    return Tile(f"round {round_label(item)}, {item.phase}", f"{item.reported}", f"reported{wanted}")


def status_words(run: RunSummary) -> str:
    """The state of a run, in a sentence for screen readers."""
    return f"{run.status}, {run.rounds_released} of {run.rounds_total} rounds released"
