import dataclasses

import pytest

from atoll.server.stores import (
    Charge,
    LoggedEvent,
    Model,
    NoiseRecord,
    RecordConflictError,
    Release,
    Store,
    charges,
    event_log,
    models,
    noise_states,
    populations,
    release,
    reports,
    rounds,
)
from atoll.server.stores.charges import NO_MECHANISM
from tests.server.stores.samples import ALICE, DIGEST, NOW, OTHER_DIGEST, RUN, attempt, events, report

REPORT = report()
RELEASE = Release(
    charge=Charge(RUN, 0, 0, NO_MECHANISM, "{}", NOW),
    round=dataclasses.replace(attempt(), phase="charged"),
    events=events(1, 1),
    model=Model(RUN, 1, 0, OTHER_DIGEST, 4096, NOW, (("momentum", DIGEST),)),
    counted=[(0, 0, ALICE)],
)


@pytest.fixture
def open_round(with_run: Store) -> Store:
    """A round with one report, about to be released."""
    with_run.writer.submit(event_log.append, RUN, events(0, 1)).result()
    with_run.writer.submit(rounds.put, attempt()).result()
    with_run.writer.submit(reports.record, REPORT).result()
    return with_run


async def test_everything_is_there_together(open_round: Store) -> None:
    assert await open_round.writer.run(release.record, RELEASE) is True
    assert await open_round.reader.run(charges.listed, RUN) == (RELEASE.charge,)
    assert await open_round.reader.run(models.latest, RUN) == RELEASE.model
    assert await open_round.reader.run(rounds.get, RUN, 0, 0) == RELEASE.round
    assert await open_round.reader.run(event_log.read, RUN) == tuple(events(0, 2))
    found = await open_round.reader.run(reports.get, RUN, 0, 0, ALICE)
    assert found == dataclasses.replace(REPORT, counted=True)


async def test_a_release_that_fails_anywhere_leaves_nothing(open_round: Store) -> None:
    stale = dataclasses.replace(RELEASE, events=[LoggedEvent(0, NOW, "Charged", "{}")])
    with pytest.raises(RecordConflictError, match="event 0 is already in the log"):
        await open_round.writer.run(release.record, stale)
    assert await open_round.reader.run(charges.get, RUN, 0) is None
    assert await open_round.reader.run(models.latest, RUN) is None
    assert await open_round.reader.run(rounds.get, RUN, 0, 0) == attempt()
    assert await open_round.reader.run(reports.get, RUN, 0, 0, ALICE) == REPORT
    assert await open_round.writer.run(release.record, RELEASE) is True


async def test_the_same_release_again_changes_nothing(open_round: Store) -> None:
    await open_round.writer.run(release.record, RELEASE)
    assert await open_round.writer.run(release.record, RELEASE) is False
    assert await open_round.reader.run(event_log.next_seq, RUN) == 2


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(RELEASE, charge=dataclasses.replace(RELEASE.charge, attempt=1)),
        dataclasses.replace(RELEASE, model=Model(RUN, 1, 0, DIGEST, 4096, NOW)),
        dataclasses.replace(RELEASE, model=None),
    ],
)
async def test_a_round_is_released_once(open_round: Store, other: Release) -> None:
    await open_round.writer.run(release.record, RELEASE)
    with pytest.raises(RecordConflictError, match="round 1 was released with model"):
        await open_round.writer.run(release.record, other)
    assert await open_round.reader.run(charges.listed, RUN) == (RELEASE.charge,)


async def test_an_evaluation_releases_no_model(open_round: Store) -> None:
    evaluation = dataclasses.replace(RELEASE, model=None)
    assert await open_round.writer.run(release.record, evaluation) is True
    assert await open_round.writer.run(release.record, evaluation) is False
    assert await open_round.reader.run(models.latest, RUN) is None


PRIVATE = dataclasses.replace(
    RELEASE,
    charge=Charge(RUN, 0, 0, "gaussian", '{"clip": 1.0}', NOW, "clinic"),
    noise=NoiseRecord(RUN, 1, '{"secret":"new"}'),
)
OLD_NOISE = NoiseRecord(RUN, 0, '{"secret":"old"}')


@pytest.fixture
def private_round(open_round: Store) -> Store:
    """The round is of a private run."""
    open_round.writer.submit(populations.add, "clinic", "add_remove", NOW).result()
    open_round.writer.submit(noise_states.add, OLD_NOISE).result()
    return open_round


async def test_the_charge_and_the_next_noise_are_there_with_the_model(private_round: Store) -> None:
    root = (await private_round.reader.run(populations.get, "clinic")).root
    assert await private_round.writer.run(release.record, PRIVATE) is True
    kept = await private_round.reader.run(charges.get, RUN, 0)
    assert kept is not None
    assert (kept.seq, kept.previous) == (0, root)
    population = await private_round.reader.run(populations.get, "clinic")
    assert (population.charges, population.head) == (1, kept.digest)
    assert await private_round.reader.run(noise_states.find, RUN) == PRIVATE.noise
    assert await private_round.writer.run(release.record, PRIVATE) is False
    assert await private_round.reader.run(populations.get, "clinic") == population


@pytest.mark.parametrize(
    "broken",
    [
        dataclasses.replace(PRIVATE, events=[LoggedEvent(0, NOW, "Charged", "{}")]),  # the last thing that is written
        dataclasses.replace(PRIVATE, noise=NoiseRecord(RUN, 2, "{}")),
        dataclasses.replace(PRIVATE, model=Model("rnone", 1, 0, OTHER_DIGEST, 4096, NOW)),
    ],
)
async def test_a_private_release_that_fails_anywhere_has_spent_nothing(private_round: Store, broken: Release) -> None:
    before = await private_round.reader.run(populations.get, "clinic")
    with pytest.raises(RecordConflictError):
        await private_round.writer.run(release.record, broken)
    assert await private_round.reader.run(charges.get, RUN, 0) is None
    assert await private_round.reader.run(populations.get, "clinic") == before
    assert await private_round.reader.run(noise_states.find, RUN) == OLD_NOISE
    assert await private_round.reader.run(models.latest, RUN) is None
    assert await private_round.writer.run(release.record, PRIVATE) is True
