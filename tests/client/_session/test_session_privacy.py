"""Privacy in whole sessions, even with network faults: tasks are declined, updates clipped, noised and charged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.client import Evaluation, Model, Policy, PrivacyDemand, Task, Update
from atoll.client._privacy.clipping import MARGIN
from atoll.client._privacy.ledger import Limit, read_account
from atoll.client._privacy.promises import path_of, read_promises
from atoll.client._privacy.randomisers import LocalPrivacy, Sphere
from atoll.wire.encoding import Encoding
from atoll.wire.privacy_terms import terms_to_proto
from atoll.wire.v1 import participation_pb2 as part
from tests.client.conftest import Start
from tests.client.harness import MODEL, AddOne, Federation
from tests.wire.test_privacy_terms import TERMS

SIZE = sum(array.size for array in MODEL.values())
SPHERE = Sphere(1.0, clip_norm=0.1)
ACCEPTED, DECLINED, FAILED = (
    part.TaskReply.VERDICT_ACCEPTED,
    part.TaskReply.VERDICT_DECLINED,
    part.TaskReply.VERDICT_FAILED,
)


class Telling(AddOne):
    """Reports metrics, and evaluates."""

    def fit(self, model: Model, task: Task) -> Update:
        return Update(weights=super().fit(model, task).weights, weight=3, metrics={"loss": 0.5}, partial=True)

    def evaluate(self, model: Model, task: Task) -> Evaluation:
        del model, task
        return Evaluation({"loss": 0.5}, weight=3)


class Secretive(AddOne):
    """Prepares, objects, fails, and says why."""

    prepared: Path | None = None

    def prepare(self, state: Path) -> None:
        self.prepared = state

    def objection(self, task: Task) -> str | None:
        return "not on Sundays" if task.round == 0 else None

    def fit(self, model: Model, task: Task) -> Update:
        del model, task
        raise KeyError("Smith, John")


def noised(epsilon: float = 100.0) -> Policy:
    return Policy(local_privacy=LocalPrivacy(SPHERE, Limit(epsilon, 0.0)))


async def test_an_update_is_clipped_to_the_terms(server: Federation, start: Start) -> None:
    start(Telling(), max_rounds=1)
    await server.hello()
    server.invite(privacy=terms_to_proto(TERMS), evaluate=True)
    report = await server.report()
    update = server.update_of(report)
    assert np.linalg.norm(update) == pytest.approx(MARGIN * TERMS.clip_norm, rel=1e-5)
    np.testing.assert_allclose(update, update[0])
    assert not report.metrics
    assert not report.evaluation
    assert (report.weight, report.partial) == (3, True)


async def test_demands_are_made_whatever_the_server_says(server: Federation, start: Start) -> None:
    start(AddOne(), policy=Policy(privacy=PrivacyDemand(max_epsilon=5.0)))
    await server.hello()
    server.invite(0)
    reply = await server.reply()
    assert (reply.verdict, reply.reason) == (DECLINED, "policy: the run has no privacy terms, and they are required")
    server.invite(1, privacy=terms_to_proto(TERMS))
    assert (await server.reply()).reason == "policy: the run's epsilon is 8, at most 5 allowed"
    terms = terms_to_proto(TERMS)
    terms.epsilon = 5.0
    server.invite(2, privacy=terms)
    assert (await server.reply()).verdict == ACCEPTED


async def test_what_all_runs_have_promised_ends_taking_part(server: Federation, start: Start, tmp_path: Path) -> None:
    """A promise is recorded once for each run, before training: it is on disk while ``fit`` still runs."""

    class Looking(AddOne):
        def fit(self, model: Model, task: Task) -> Update:
            record = read_promises(path_of(tmp_path / "state"))
            seen.append(0.0 if record is None else record.total.epsilon)
            return super().fit(model, task)

    seen: list[float] = []
    start(Looking(), policy=Policy(privacy=PrivacyDemand(max_epsilon=8.0, max_total_epsilon=13.0)))
    await server.hello()
    terms = terms_to_proto(TERMS)
    for number, (run, epsilon) in enumerate((("r1", 8.0), ("r1", 8.0), ("r2", 5.0))):
        terms.epsilon = epsilon
        server.invite(number, run=run, privacy=terms)
        assert (await server.reply()).verdict == ACCEPTED
        await server.report()
    assert seen == [8.0, 8.0, 13.0]
    terms.epsilon = 0.25
    server.invite(0, run="r3", privacy=terms)
    reply = await server.reply()
    assert (reply.verdict, reply.reason) == (
        DECLINED,
        "privacy: 2 runs promised epsilon 13 together, with this one it would be 13.25, "
        "at most 13 allowed (max_total_epsilon)",
    )
    record = read_promises(path_of(tmp_path / "state"))
    assert record is not None
    assert {one.server for one in record.promises} == {server.address}
    path_of(tmp_path / "state").write_text("{")
    server.invite(1, run="r3", privacy=terms)
    assert (await server.reply()).reason.startswith("privacy: the record of promises")


async def test_terms_that_are_none_are_declined(server: Federation, start: Start) -> None:
    """A server cannot be accepted by promising an unknown mechanism."""
    start(AddOne())
    await server.hello()
    terms = terms_to_proto(TERMS)
    terms.mechanism = part.PrivacyTerms.Mechanism.ValueType(7)
    server.invite(0, privacy=terms)
    reply = await server.reply()
    assert reply.verdict == DECLINED
    assert "privacy.mechanism is 7, which this version does not know" in reply.reason


@pytest.mark.parametrize("encoding", [Encoding.FLOAT32, Encoding.INT8_BLOCK])
async def test_a_noised_update_is_charged_once_whatever_the_network_does(
    server: Federation, start: Start, tmp_path: Path, encoding: Encoding
) -> None:
    start(Telling(), max_rounds=1, policy=noised())
    hello = await server.hello()
    assert not hello.can_evaluate
    server.faults.break_upload_after, server.faults.lose_chunks = [2], 3
    server.faults.lose_report_ack = 1
    server.invite(encoding=encoding, evaluate=True)
    assert (await server.reply()).verdict == ACCEPTED
    report = await server.report()
    assert np.linalg.norm(server.update_of(report)) == pytest.approx(SPHERE.radius(SIZE), rel=1e-2)
    assert not report.metrics
    assert not report.evaluation
    assert (report.weight, report.partial) == (AddOne.examples, False)
    account = read_account(tmp_path / "state" / "privacy" / "updates.json")
    assert account is not None
    assert (account.epsilon, account.rounds, account.entries[0].run_name) == (1.0, 1, "demo")


async def test_what_is_spent_ends_taking_part(server: Federation, start: Start) -> None:
    trainer = AddOne()
    start(trainer, policy=noised(epsilon=1.5))
    await server.hello()
    server.invite(0)
    assert (await server.reply()).verdict == ACCEPTED
    await server.report()
    server.invite(1)
    reply = await server.reply()
    assert reply.verdict == DECLINED
    assert reply.reason.startswith("privacy: 1 of epsilon 1.5 (delta 0) are spent on each participant here")
    assert len(trainer.tasks) == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "fit raised KeyError"),
        ({"policy": Policy(errors="text")}, "Smith"),
        ({"policy": noised()}, "the participant's own code failed"),
    ],
)
async def test_a_participants_own_words(
    server: Federation, start: Start, tmp_path: Path, options: dict[str, Any], expected: str
) -> None:
    """Objections are checked before training; if only noise may leave, the text of a failure is not sent."""
    trainer = Secretive()
    start(trainer, **options)
    await server.hello()
    assert trainer.prepared == tmp_path / "state"
    server.invite(0)
    reply = await server.reply()
    assert (reply.verdict, reply.reason) == (DECLINED, "not on Sundays")
    server.invite(1)
    assert (await server.reply()).verdict == ACCEPTED
    reply = await server.reply()
    assert reply.verdict == FAILED
    assert expected in reply.reason
    assert ("Smith" in reply.reason) == (expected == "Smith")
