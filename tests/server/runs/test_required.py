"""Jobs that require participants: the draw, the waits of a round, and the end of a run without them."""

import asyncio
from typing import Any

import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.jobs import parse_job
from atoll.server.rounds import CohortDrawn, DrawCohort, MemberStatus, RoundKey, RoundKind
from atoll.server.runs.draw import Draw
from atoll.server.runs.required import warnings_of_choice
from atoll.wire.v1 import participation_pb2
from tests.patience import WAIT_S
from tests.server.runs.federation import Client, Federation, job

KEY = RoundKey(0, 0)


def requiring(required: str, **settings: Any) -> bytes:
    text = job(**settings)
    return text.replace(b"[straggler]", b"required = " + required.encode() + b"\n[straggler]", 1)


async def hospitals(federation: Federation, **organisations: str) -> dict[str, Client]:
    """A connected participant for each name, of its organisation."""
    found = {name: await federation.client(name, organisation=org) for name, org in organisations.items()}
    for client in found.values():
        await client.check_in()
    return found


def drawn(federation: Federation, text: bytes, count: int, kind: RoundKind = RoundKind.TRAIN) -> CohortDrawn | object:
    effect = DrawCohort(KEY, kind, count, 1, (), KEY.round)
    return federation.coordinator._starter.pool_of("default").draw(Draw("r", effect, parse_job(text)))


class TestTheDraw:
    async def test_the_required_are_always_drawn_and_the_others_fill_the_cohort(self, federation: Federation) -> None:
        there = await hospitals(federation, a="north", b="south", c="east", d="west", e="far")
        text = requiring('["west", "north"]', size=3)
        for seed in range(8):
            found = drawn(federation, text.replace(b"[straggler]", b"seed = %d\n[straggler]" % seed), 3)
            assert isinstance(found, CohortDrawn)
            assert len(found.members) == 3
            assert found.members == tuple(sorted(found.members))
            assert found.required == ((there["a"].name, "north"), (there["d"].name, "west"))
            assert found.eligible == 5
            federation.coordinator._starter.pool_of("default").finish_draw("r")

    async def test_all_means_each_member_by_its_organisation(self, federation: Federation) -> None:
        there = await hospitals(federation, a="north", b="south")
        found = drawn(federation, requiring('"all"', size=2), 2)
        assert isinstance(found, CohortDrawn)
        assert found.required == ((there["a"].name, "north"), (there["b"].name, "south"))

    async def test_a_round_waits_for_a_required_participant_and_says_so(self, federation: Federation) -> None:
        there = await hospitals(federation, a="north", b="south", c="east")
        there["a"].leave()
        heard: asyncio.Queue[str] = asyncio.Queue()
        effect = DrawCohort(KEY, RoundKind.TRAIN, 2, 1, (), KEY.round)
        spec = parse_job(requiring('["north"]', size=2))
        waiting = federation.coordinator._starter.pool_of("default").draw(Draw("r", effect, spec), heard.put_nowait)
        assert not isinstance(waiting, CohortDrawn)
        task = asyncio.create_task(waiting())
        said = await asyncio.wait_for(heard.get(), WAIT_S)
        assert said == "waiting for north, which every round needs (cohort.required)"
        await there["a"].check_in()
        found = await asyncio.wait_for(task, WAIT_S)
        assert (there["a"].name, "north") in found.required

    async def test_an_evaluation_does_not_wait_for_one_that_cannot_evaluate(self, federation: Federation) -> None:
        north, south = await federation.client("a", organisation="north"), await federation.client("b")
        await north.check_in(can_evaluate=False)
        await south.check_in()
        found = drawn(federation, requiring('["north"]', size=2), 2, RoundKind.EVALUATE)
        assert isinstance(found, CohortDrawn)
        assert ([name for name, _ in found.members], found.required) == ([south.name], ())

    async def test_an_evaluation_waits_for_one_that_is_away(self, federation: Federation) -> None:
        there = await hospitals(federation, a="north", b="south", c="east")
        there["a"].leave()
        text = requiring('["north"]', size=2)
        assert not isinstance(drawn(federation, text, 2, RoundKind.EVALUATE), CohortDrawn)


class TestSubmission:
    async def test_a_name_that_is_not_enrolled_is_refused_with_those_that_are(self, federation: Federation) -> None:
        await hospitals(federation, a="north", b="south")
        with pytest.raises(InvalidRequestError, match="'nroth', which is neither an enrolled participant") as caught:
            await federation.submit(requiring('["nroth"]', size=2))
        assert "participants of: north, south" in (caught.value.detail.remedy or "")

    async def test_more_participants_than_a_cohort_holds_are_refused(self, federation: Federation) -> None:
        await hospitals(federation, a="north", b="north", c="north")
        with pytest.raises(InvalidRequestError, match="names at least 3 participants; a cohort has 2"):
            await federation.submit(requiring('["north"]', size=2))

    async def test_an_id_may_be_named(self, federation: Federation) -> None:
        there = await hospitals(federation, a="north", b="north")
        await federation.submit(requiring(f'["{there["b"].name}"]', size=1))
        await there["b"].next("participate")


class TestTheWarning:
    @pytest.mark.parametrize(
        ("text", "connected", "words"),
        [
            (requiring('"all"', size=3), 4, 'all" means those; for all of them in each round set cohort.size = 4'),
            (requiring('"all"', size=3), 3, ""),
            (requiring('["north"]', size=3), 4, ""),
            (job(size=3), 4, ""),
        ],
    )
    def test_a_job_that_asks_for_all_and_draws_some_is_told(self, text: bytes, connected: int, words: str) -> None:
        found = " ".join(warnings_of_choice(parse_job(text), connected))
        assert words in found
        assert bool(words) == bool(found)

    async def test_it_comes_with_the_answer_to_the_submission(self, federation: Federation) -> None:
        await hospitals(federation, a="north", b="south", c="east")
        assert (
            "3 participants are connected, and each round draws 2"
            in (await federation.submitted_as(requiring('"all"', size=2))).warnings[0]
        )

    def test_statistics_would_fail(self) -> None:
        text = '[job]\nname = "s"\n[cohort]\nsize = 3\n[statistics]\nnumeric = ["age"]\n'
        (found,) = warnings_of_choice(parse_job(text), 4)
        assert found.endswith("the run fails when two rounds draw different ones; set cohort.size = 4")


class TestTheRun:
    async def test_it_fails_and_says_who_was_missing_and_why(self, federation: Federation) -> None:
        there = await hospitals(federation, a="north", b="south", c="east")
        run = await federation.submit(requiring('"all"', size=3, quorum=1, straggler="max_attempts = 5"))
        north = there["a"]
        for attempt in range(2):
            key = (await north.invitation()).key
            assert key.attempt == attempt
            await north.reply(key, "accepted")
            await north.reply(key, "failed", "fit raised KeyError")
        row = await federation.ended(run)
        assert row.status == "failed"
        assert f"missing: north ({north.name}) failed: fit raised KeyError; it is not tried again" in row.reason

    async def test_other_members_are_not_told_who_was_missing(self, federation: Federation) -> None:
        there = await hospitals(federation, a="north", b="south")
        run = await federation.submit(requiring('["north"]', size=2, quorum=1, straggler="max_attempts = 1"))
        key = (await there["a"].invitation()).key
        await there["b"].invitation()
        await there["a"].reply(key, "failed", "fit raised KeyError")
        stop = await there["b"].next("stop")
        assert isinstance(stop, participation_pb2.Stop)
        assert stop.reason == "a member that the job requires (cohort.required) is missing"
        members = await federation.members(run)
        assert members[there["a"].name] == (MemberStatus.FAILED.value, "fit raised KeyError")
        assert there["a"].name not in members[there["b"].name][1]
        found = (await federation.rounds(run))[0]
        assert f"north ({there['a'].name}) failed" in found.reason
