"""Events and effects as values: they refuse nonsense, and survive JSON."""

import math

import pytest
from pydantic import TypeAdapter

from atoll.server.rounds import CohortDrawn, Effect, Event, Reported, RoundGrid, RoundKey, RoundPrepared, UpdateRef
from tests.server.rounds.json_mapping import EVENTS
from tests.server.rounds.scenario import CARRY, Story, policy
from tests.server.rounds.test_table import events_of

KEY = RoundKey(3, 1)
REF = UpdateRef(KEY, "pa", "d", 5, "n0")


@pytest.mark.parametrize(
    "event",
    [
        *events_of(KEY),
        Reported(KEY, "pa", REF, 5, (("loss", 0.25), ("accuracy", 1.0))),
        RoundPrepared(KEY, 0.5, 1e9, RoundGrid(20, 32.0, 3, 24)),
        CohortDrawn(KEY, (("pa", 1), ("pb", 1 << 40)), 9, "poisson", 1 << 127),
    ],
    ids=lambda event: event.kind,
)
def test_an_event_survives_json_told_apart_by_its_kind(event: Event) -> None:
    assert EVENTS.validate_json(EVENTS.dump_json(event)) == event
    assert f'"kind":"{event.kind}"'.encode() in EVENTS.dump_json(event)


def test_effects_survive_json_too() -> None:
    story = Story(policy(late=CARRY)).closing()
    story.on(story.report("pc"))
    seen = list(story.effects)
    seen += story.release().effects
    for effect in seen:
        adapter: TypeAdapter[Effect] = TypeAdapter(type(effect))
        assert adapter.validate_json(adapter.dump_json(effect)) == effect


def test_a_cohort_names_each_participant_once() -> None:
    with pytest.raises(ValueError, match=r"round 4\.2: the cohort names a participant twice"):
        CohortDrawn(KEY, (("pa", 1), ("pa", 2)), 9, "uniform", 0)


def test_a_cohort_has_no_member_of_negative_weight() -> None:
    with pytest.raises(ValueError, match="pa declares weight -1; must be 0 or more"):
        CohortDrawn(KEY, (("pa", -1),), 9, "uniform", 0)


@pytest.mark.parametrize("window_s", [0.0, -1.0, math.inf, math.nan])
def test_every_round_has_a_deadline(window_s: float) -> None:
    with pytest.raises(ValueError, match="must be finite and above 0 seconds"):
        RoundPrepared(KEY, window_s, 1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_no_mean_survives_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"metric 'loss' = (nan|inf): must be finite"):
        Reported(KEY, "pa", REF, 5, (("loss", value),))


def test_a_report_and_its_update_agree() -> None:
    with pytest.raises(ValueError, match="all three must agree"):
        Reported(KEY, "pb", REF, 5)
    with pytest.raises(ValueError, match="all three must agree"):
        Reported(KEY, "pa", REF, 6)
    with pytest.raises(ValueError, match="all three must agree"):
        Reported(RoundKey(3, 2), "pa", REF, 5)
    with pytest.raises(ValueError, match="reports weight -1"):
        Reported(KEY, "pa", None, -1)
