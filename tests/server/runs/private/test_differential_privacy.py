"""Private runs over real stores, spool and folding: sums, noise, charges, and invitations."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select, update

from atoll.accounting import Steps, composing
from atoll.server.disk.space import Room
from atoll.server.errors import InvalidRequestError, ServerError
from atoll.server.jobs import JobFileError
from atoll.server.privacy import ledger
from atoll.server.privacy.errors import BudgetSpentError
from atoll.server.privacy.run import PrivateRun
from atoll.server.rounds import Phase, RunState, RunStatus
from atoll.server.runs.private.budgets import Budgets
from atoll.server.runs.private.differential_privacy import DifferentialPrivacy
from atoll.server.runs.private.promise import PrivatePromise
from atoll.server.runs.run_privacy import Promise, RunPrivacy
from atoll.server.stores import StoreDamagedError, charges, noise_states, runs, schema
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.privacy_terms import PrivacyMechanism, terms_from_proto
from tests.server.runs.federation import LAYOUT, Client, Federation, Values, job, opened, update_values

pytestmark = pytest.mark.slow

CLIP = 0.5
LOUD = "noise_multiplier = 4.0"
QUIET = "noise_multiplier = 1e-6"


EVERYONE = 'sampler = "poisson"\nrate = 1.0'
"""A draw that must stay secret, and takes every participant."""


def private_job(
    *, rounds: int = 1, size: int = 2, cohort: str = EVERYONE, noise: str = QUIET, privacy: str = "", quorum: int = 0
) -> bytes:
    text = job(rounds=rounds, size=size, quorum=quorum, straggler=f"max_attempts = 1\n[cohort_]\n{cohort}").decode()
    before, rest = text.split("[cohort_]\n")
    more, after = rest.split("[evaluation]")
    section = '[aggregation]\nweighting = "uniform"\n'
    section += f'[privacy]\npopulation = "people"\ndelta = 1e-5\nclip = {CLIP}\n{noise}\n{privacy}\n'
    cohort_section = f"[cohort]\n{more}"
    return before.replace("[cohort]\n", cohort_section).encode() + b"[evaluation]" + after.encode() + section.encode()


def capped(rounds: int, *, most: int, separation: int = 1, mechanism: str = "gaussian", noise: str = LOUD) -> bytes:
    """A job whose cohort consists of the participants that have waited longest."""
    bounds = f"max_participations = {most}\nmin_separation = {separation}\nmechanism = '{mechanism}'"
    return private_job(
        rounds=rounds, size=1, quorum=1, cohort='sampler = "least_recent"\nseed = 5', noise=noise, privacy=bounds
    )


def clipped(values: Values) -> Values:
    return values * min(1.0, CLIP / float(np.linalg.norm(values)))


async def state_of(federation: Federation, run: str) -> PrivateRun:
    found = await federation.store.reader.run(noise_states.find, run)
    assert found is not None
    return PrivateRun.from_text(found.body)


async def report(client: Client, seed: int, loss: float = 0.0) -> None:
    invitation = await client.invitation()
    await client.report(invitation.key, update_values(seed), loss=loss)


async def test_the_model_moves_by_clipped_updates_over_the_planned_cohort_for_any_attendance(
    federation: Federation,
) -> None:
    alice, bob = await federation.clients("alice", "bob")
    run = await federation.submit(private_job())
    await report(alice, 1)
    await bob.reply((await bob.invitation()).key, "declined", "no time")
    await federation.deadline(run)
    ended = await federation.ended(run)
    moved = federation.model(ended.current_model)
    assert np.allclose(moved, clipped(update_values(1)) / 2, atol=1e-5)


async def test_noise_has_the_size_that_the_contract_says(federation: Federation) -> None:
    alice, bob = await federation.clients("alice", "bob")
    run = await federation.submit(private_job(rounds=60, noise=LOUD))
    for seed in range(60):
        await report(alice, seed)
        await bob.reply((await bob.invitation()).key, "declined")
        await federation.deadline(run)
    ended = await federation.ended(run)
    moved = federation.model(ended.current_model)
    expected = 4.0 * CLIP / 2 * np.sqrt(60)  # of 24 elements: their deviation is outside the bounds twice in 1e7
    assert 0.35 * expected < np.std(moved) < 2.0 * expected


async def test_a_round_without_reports_is_released_with_noise_and_charged(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    clients = await federation.clients("alice", "bob")
    cohort = 'sampler = "uniform"'
    run = await federation.submit(private_job(noise=LOUD, cohort=cohort, privacy="max_participations = 1"))
    for client in clients:
        await client.reply((await client.invitation()).key, "declined")
    ended = await federation.ended(run)
    assert ended.status == RunStatus.FINISHED
    assert np.all(federation.model(ended.current_model) != 0)
    assert [one.population for one in await federation.store.reader.run(charges.listed, run)] == ["people"]
    assert f"run {run} round 1: no update arrived, so the release is only noise" in caplog.text


async def test_a_run_that_too_few_report_to_pauses_and_is_charged_no_further(federation: Federation) -> None:
    """On a busy machine 24 were drawn in each round, none reported in time, and all rounds were charged."""
    await federation.clients("alice", "bob")
    empty_draw = 'sampler = "poisson"\nrate = 1e-9\nmin_available = 2'
    run = await federation.submit(private_job(rounds=4, size=40, cohort=empty_draw, privacy="report_noise = 0.5"))
    for released in (1, 2):
        await federation.deadline(run)
        state = await federation.state(run, lambda state: state.status is RunStatus.PAUSED)
        assert state.version == released
        assert f"less than half of cohort.size report to run {run}" in state.reason
        assert "straggler.report_window_s" in state.reason
        await federation.coordinator.resume(run)
    assert len(await federation.store.reader.run(charges.listed, run)) == 2


async def test_a_run_that_goes_on_though_too_few_report_does_not_pause_again_after_a_restart(tmp_path: Path) -> None:
    """The operator's decision used to be kept only in memory."""
    empty_draw = 'sampler = "poisson"\nrate = 1e-9\nmin_available = 2'
    async with opened(tmp_path) as federation:
        await federation.clients("alice", "bob")
        run = await federation.submit(private_job(rounds=4, size=40, cohort=empty_draw, privacy="report_noise = 0.5"))
        await federation.deadline(run)
        await federation.state(run, lambda state: state.status is RunStatus.PAUSED)
        before = await state_of(federation, run)
        assert before.is_short
        await federation.coordinator.resume(run)
    async with opened(tmp_path) as federation:
        after = await state_of(federation, run)
        assert not after.is_short
        assert after.state.noise == before.state.noise  # only the count of missing reports begins anew
        await federation.clients("alice", "bob")
        await federation.state(run, lambda state: state.round is not None and state.round.phase is Phase.OPEN)


class Measured(Room):
    """Records its calls."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, 0)
        self.needed: list[int] = []

    def require(self, what: str, needed_bytes: int = 0) -> None:
        if what == "a round of this run":
            self.needed.append(needed_bytes)


async def test_noise_that_is_kept_counts_towards_the_room_of_a_round(tmp_path: Path) -> None:
    elements = LAYOUT.size
    room = Measured(tmp_path)
    async with opened(tmp_path / "data", room=room) as federation:
        bare, *kept = [
            capped(8, most=2, separation=4, mechanism=name) for name in ("gaussian", "tree", "banded", "blt")
        ]
        await federation.submit(bare)
        for one in kept:
            run = await federation.submit(one)
            promised = await state_of(federation, run)
            contract = promised.contract
            buffers = contract.strategy.buffers if contract.strategy else 0
            values = {"tree": 0, "banded": contract.bands, "blt": 2 * buffers}
            assert room.needed[-1] - room.needed[0] == 8 * elements * values[contract.mechanism]
        assert room.needed[-1] > room.needed[0]


async def test_every_release_is_charged_and_leaves_another_secret(federation: Federation) -> None:
    clients = await federation.clients("alice", "bob")
    run = await federation.submit(private_job(rounds=3))
    secrets = [(await state_of(federation, run)).state.noise.secret]
    for version in range(3):
        for client in clients:
            await report(client, version)
        await federation.deadline(run)
        done = version + 1
        await (_released(federation, run, done) if done < 3 else federation.ended(run))
        secrets.append((await state_of(federation, run)).state.noise.secret)
    assert len(set(secrets)) == 4
    found = await federation.store.reader.run(charges.listed, run)
    assert [(one.round, one.mechanism, json.loads(one.body)["clip"]) for one in found] == [
        (number, "gaussian", CLIP) for number in range(3)
    ]
    spent = await federation.store.reader.run(ledger.spent, "people")
    assert [one.run_id for one in spent.runs] == [run]


async def test_members_are_told_the_terms_and_not_how_many_were_drawn(federation: Federation) -> None:
    clients = await federation.clients("alice", "bob", "carol")
    cohort = f"{EVERYONE}\nmin_available = 3"
    run = await federation.submit(private_job(size=2, cohort=cohort, noise=LOUD))
    invitation = await clients[0].invitation()
    assert invitation.cohort_size == 2
    terms = terms_from_proto(invitation.privacy)
    promised = await state_of(federation, run)
    assert (terms.mechanism, terms.population, terms.clip_norm) == (PrivacyMechanism.GAUSSIAN, "people", CLIP)
    assert terms.epsilon == promised.epsilon
    assert terms.noise_multiplier == 4.0


async def test_an_adaptive_norm_moves_by_the_noised_share_of_updates_within_it(federation: Federation) -> None:
    clients = await federation.clients("alice", "bob")
    adaptive = "adaptive = { initial = 100.0, learning_rate = 1.0, count_noise = 0.1 }"
    toml = private_job(rounds=20, noise="noise_multiplier = 0.1").replace(f"clip = {CLIP}".encode(), adaptive.encode())
    run = await federation.submit(toml)
    before = (await state_of(federation, run)).state.clip
    for version in range(20):
        for client in clients:
            await report(client, version)
        await federation.deadline(run)
    await federation.ended(run)
    found = await federation.store.reader.run(charges.listed, run)
    clips = [json.loads(one.body)["clip"] for one in found]
    assert clips[0] == before == 100.0
    assert clips[-1] < 20.0  # norms are about 5, and both updates always within: by the half each round, but for noise


async def test_metrics_of_participants_are_neither_kept_nor_shown(federation: Federation) -> None:
    clients = await federation.clients("alice", "bob")
    run = await federation.submit(private_job())
    for client in clients:
        await report(client, 1, loss=0.25)
    await federation.deadline(run)
    await federation.ended(run)
    (row,) = await federation.rounds(run)
    assert row.metrics == ()


async def test_a_participant_in_as_many_rounds_as_the_job_allows_is_not_drawn_again(federation: Federation) -> None:
    alice, bob = await federation.clients("alice", "bob")
    run = await federation.submit(capped(4, most=2, separation=2))
    order = [await _one_round(federation, [alice, bob], run, version) for version in range(4)]
    await federation.ended(run)
    assert order in ([alice.name, bob.name] * 2, [bob.name, alice.name] * 2)


async def _released(federation: Federation, run: str, models: int) -> None:
    await federation.state(run, lambda state: state.version == models)


def _open_round(state: RunState) -> int | None:
    live = state.round
    return live.key.round if live is not None and live.phase is Phase.OPEN else None


async def test_a_run_waits_for_participants_that_may_still_be_drawn_and_says_so(federation: Federation) -> None:
    (alice,) = await federation.clients("alice")
    run = await federation.submit(capped(2, most=1))
    await report(alice, 1)
    await federation.state(run, lambda _: "1 of 1 participants" in federation.active(run).performer.trouble)
    (bob,) = await federation.clients("bob")
    await report(bob, 2)
    assert (await federation.ended(run)).status == RunStatus.FINISHED


async def test_a_round_that_would_pass_the_populations_limit_does_not_start(federation: Federation) -> None:
    clients = await federation.clients("alice", "bob")
    first = await federation.submit(private_job(noise=LOUD))
    await federation.state(first, lambda state: _open_round(state) == 0)
    second = await federation.submit(private_job(noise=LOUD))  # its draw waits for the end of the other's secret round
    spent = (await state_of(federation, first)).contract.epsilon_after(1)
    await federation.store.writer.run(limit_to, spent * 1.2)
    for client in clients:
        await report(client, 1)
    await federation.deadline(first)
    await federation.ended(first)
    await paused(federation, second)
    row = await federation.store.reader.run(runs.get, second)
    assert (row.status, row.finished_at) == (RunStatus.PAUSED, None)
    assert row.reason.startswith("the privacy budget of population people has no room for the next round: epsilon ")
    assert f"`atoll run resume {second}`" in row.reason
    assert await federation.store.reader.run(charges.listed, second) == ()
    assert all(client.pending == 0 for client in clients)
    with pytest.raises(BudgetSpentError, match=f"round 1 of run {second} would make it"):
        await federation.coordinator.resume(second)
    await paused(federation, second)
    await federation.store.writer.run(limit_to, spent * 3)
    await federation.coordinator.resume(second)
    for client in clients:
        await report(client, 2)
    await federation.deadline(second)
    ended = await federation.ended(second)
    assert (ended.status, ended.reason) == (RunStatus.FINISHED, "all rounds are done")
    assert len(await federation.store.reader.run(charges.listed, second)) == 1


async def test_a_run_that_does_not_fit_under_the_limit_is_refused(federation: Federation) -> None:
    """It is refused before it spends the rest of the budget and stops halfway."""
    clients = await federation.clients("alice", "bob")
    first = await federation.submit(private_job(noise=LOUD))
    one = (await state_of(federation, first)).contract.epsilon_after(1)
    for client in clients:
        await report(client, 1)
    await federation.deadline(first)
    await federation.ended(first)
    await federation.store.writer.run(limit_to, one * 2)
    with pytest.raises(
        BudgetSpentError, match=r"population people has no room for this run: epsilon 0\.968"
    ) as refused:
        await federation.submit(private_job(rounds=40, noise=LOUD))
    assert "its 40 rounds cost" in str(refused.value)
    assert "raise the limit with `atoll privacy limit people --epsilon E --delta D`" in refused.value.detail.remedy
    assert len(await federation.store.reader.run(runs.listed, project=None)) == 1
    await federation.submit(private_job(noise=LOUD))


@pytest.mark.parametrize("restart", [False, True], ids=["at once", "after a restart"])
async def test_a_sum_that_a_lower_limit_forbids_is_released_once_the_limit_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    """The result is that of a run without a limit: the same secret and reports give the same bits, charged once."""
    monkeypatch.setattr("atoll.server.privacy.run.new_secret", lambda: b"\x07" * 32)
    monkeypatch.setattr("atoll.server.runs.submission.new_run_id", lambda: "r0123456789ab")

    async def begun(federation: Federation) -> str:
        clients = await federation.clients("alice", "bob")
        run = await federation.submit(private_job(noise=LOUD))
        await federation.state(run, lambda state: _open_round(state) == 0)
        if limited:
            await federation.store.writer.run(limit_to, 1e-3)
        for seed, client in enumerate(clients):
            await report(client, seed)
        await federation.deadline(run)
        return run

    limited = False
    async with opened(tmp_path / "calm") as federation:
        expected = (await federation.ended(await begun(federation))).current_model
    limited = True
    async with opened(tmp_path / "limited") as federation:
        run = await begun(federation)
        await paused(federation, run)
        assert await federation.store.reader.run(charges.listed, run) == ()
        if not restart:
            await _goes_on(federation, run, expected)
    if restart:
        async with opened(tmp_path / "limited") as federation:
            await paused(federation, run)
            await _goes_on(federation, run, expected)


async def _goes_on(federation: Federation, run: str, expected: str) -> None:
    """The run waits until the limit is raised; then it continues to its end, and no participant sends again."""
    with pytest.raises(BudgetSpentError):
        await federation.coordinator.resume(run)
    await federation.store.writer.run(limit_to, 1000.0)
    federation.submitted[run] = federation.active(run)
    await federation.coordinator.resume(run)
    ended = await federation.ended(run)
    assert (ended.status, ended.current_model) == (RunStatus.FINISHED, expected)
    assert len(await federation.store.reader.run(charges.listed, run)) == 1


async def test_a_run_whose_own_budget_is_spent_pauses_and_says_that_nothing_raises_it(federation: Federation) -> None:
    """This cannot happen unless the contract changes, since the noise is calibrated for all its rounds."""
    clients = await federation.clients("alice", "bob")
    run = await federation.submit(private_job(noise="epsilon = 2.0"))
    await federation.state(run, lambda state: _open_round(state) == 0)
    active = federation.coordinator.active(run)
    assert active is not None
    assert isinstance(active.privacy, DifferentialPrivacy)
    promise = active.privacy._current
    promise.contract = replace(promise.contract, epsilon=1.0)
    for client in clients:
        await report(client, 1)
    await federation.deadline(run)
    await paused(federation, run)
    row = await federation.store.reader.run(runs.get, run)
    assert row.reason.startswith(f"the privacy budget of run {run} has no room for the next round: epsilon ")
    with pytest.raises(BudgetSpentError, match="epsilon 0 of its target of 1 at delta 1e-05 is spent") as refused:
        await federation.coordinator.resume(run)
    assert "a run's promise cannot be raised: cancel it" in refused.value.detail.remedy
    await federation.coordinator.cancel(run, "")
    assert (await federation.ended(run)).status == RunStatus.CANCELLED


async def test_a_charge_that_was_changed_meanwhile_stops_the_next_run(federation: Federation) -> None:
    """The change comes after a verification, and no other figure shows it."""
    clients = await federation.clients("alice", "bob")
    waiting = await federation.submit(private_job(rounds=3, noise=LOUD))
    await federation.state(waiting, lambda state: _open_round(state) == 0)
    await federation.coordinator.pause(waiting)
    for client in clients:
        await report(client, 1)
    await federation.deadline(waiting)
    await paused(federation, waiting)
    assert (await federation.store.reader.run(ledger.spent, "people")).runs[0].releases == 1  # verified, and remembered
    rows = schema.charges
    query = select(rows.c.body).where(rows.c.seq == 0)
    (body,) = await federation.store.reader.run(lambda connection: connection.execute(query).one())
    cheaper = update(rows).values(body=body.replace('"noise_multiplier":4.0', '"noise_multiplier":400.0'))
    await federation.store.writer.run(lambda connection: connection.execute(cheaper))
    second = await federation.submit(private_job(noise=LOUD))
    assert "charge 0 was changed" in (await federation.ended(second)).reason
    with pytest.raises(StoreDamagedError, match="population people is damaged: charge 0 was changed"):
        await federation.coordinator.resume(waiting)
    assert federation.active(waiting).driver.state.status is RunStatus.PAUSED
    with pytest.raises(StoreDamagedError, match="charge 0 was changed"):
        await federation.submit(private_job(noise=LOUD))


async def test_what_is_charged_counts_once_while_its_model_is_judged(federation: Federation) -> None:
    run = await federation.submit(private_job(noise=LOUD))
    contract, budgets = (await state_of(federation, run)).contract, Budgets(federation.services)
    opened_ = await federation.state(run, lambda state: state.round is not None)
    assert opened_.round is not None
    for phase, held in ((Phase.OPEN, 1), (Phase.AGGREGATED, 1), (Phase.CHARGED, 0)):
        budgets.hold(run, contract, 0)
        budgets.follow(replace(opened_, round=replace(opened_.round, phase=phase)))
        assert len(budgets.hold("another", contract, 0)) == held, phase
    budgets.hold(run, contract, 0)
    budgets.follow(replace(opened_, version=1))
    assert budgets.hold("another", contract, 0) == ()


async def paused(federation: Federation, run: str) -> None:
    await federation.state(run, lambda state: state.status is RunStatus.PAUSED)


async def test_a_paused_run_reserves_nothing(federation: Federation) -> None:
    clients = await federation.clients("alice", "bob")
    first = await federation.submit(private_job(rounds=2, noise=LOUD))
    await federation.state(first, lambda state: state.round is not None and state.round.phase is Phase.OPEN)
    await federation.coordinator.pause(first)
    for client in clients:
        await report(client, 1)
    await federation.deadline(first)
    await federation.state(first, lambda state: state.status is RunStatus.PAUSED)
    cost = (await state_of(federation, first)).contract.cost(0)
    assert cost is not None
    await federation.store.writer.run(limit_to, 1.001 * ledger.epsilon_of((cost, cost), 1e-5, "rdp"))
    second = await federation.submit(private_job(noise=LOUD))
    for client in clients:
        await report(client, 2)
    await federation.deadline(second)
    assert (await federation.ended(second)).status == RunStatus.FINISHED


async def test_a_run_that_waits_for_participants_reserves_nothing(federation: Federation) -> None:
    clients = await federation.clients("alice", "bob")
    waiting = await federation.submit(private_job(cohort=f"{EVERYONE}\nmin_available = 9", noise=LOUD))
    await federation.state(waiting, lambda state: state.round is not None and state.round.phase is Phase.CREATED)
    cost = (await state_of(federation, waiting)).contract.cost(0)
    assert cost is not None
    second = await federation.submit(private_job(cohort=f"{EVERYONE}\nmin_available = 2", noise=LOUD))
    least = (await state_of(federation, second)).contract.cost(0)
    assert least is not None
    await federation.store.writer.run(limit_to, 1.001 * ledger.epsilon_of((least,), 1e-5, "rdp"))
    for client in clients:
        await report(client, 1)
    await federation.deadline(second)
    assert (await federation.ended(second)).status == RunStatus.FINISHED
    for name in "cdefghi":
        await federation.clients(name)
    paused = await federation.state(waiting, lambda state: state.status is RunStatus.PAUSED)
    assert paused.version == 0


def limit_to(connection: object, epsilon: float) -> None:
    ledger.set_limit(connection, "people", (epsilon, 1e-5), operator="admin", now=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("refused", [False, True])
async def test_a_refused_update_does_not_change_the_parts_of_others(federation: Federation, refused: bool) -> None:
    """It counts as zeros: the round is not tried again, and its sender is not drawn again sooner."""
    clients = await federation.clients("alice", "bob")
    run = await federation.submit(capped(4, most=2, separation=2))
    order = [
        await _one_round(federation, clients, run, version, refused=refused and version == 0) for version in range(4)
    ]
    assert (await federation.ended(run)).status == RunStatus.FINISHED
    assert order[:2] == order[2:]
    assert order[0] != order[1]
    assert await federation.members(run) == {order[0]: ("rejected", "not finite") if refused else ("reported", "")}
    first = (await federation.rounds(run))[0]
    assert (first.attempt, first.phase, first.reported) == (0, "released", 0 if refused else 1)


@pytest.mark.parametrize("cohort", ['sampler = "poisson"\nrate = 1e-9', EVERYONE])
async def test_a_round_of_a_secret_draw_lasts_the_same_for_any_members(federation: Federation, cohort: str) -> None:
    clients = await federation.clients("alice", "bob")
    toml = private_job(cohort=cohort, noise=LOUD).replace(b"report_window_s = 300.0", b"report_window_s = 0.5")
    assert b"report_window_s = 0.5" in toml
    run = await federation.submit(toml)
    if "1.0" in cohort:
        for client in clients:
            with contextlib.suppress(ServerError):  # a machine may be slower than the window
                await report(client, 1)
    await federation.ended(run)
    (row,) = await federation.rounds(run)
    assert row.reason == "the deadline has passed"
    assert row.opened_at is not None
    assert row.closed_at is not None
    assert row.closed_at - row.opened_at >= 0.49


async def test_what_a_secret_draw_was_made_from_is_on_no_record(federation: Federation) -> None:
    """Participants know whether they were drawn, so a seed that can be tried out would reveal who else was."""
    await federation.clients("alice", "bob")
    run = await federation.submit(private_job(noise=LOUD))
    drawn = await federation.state(run, lambda state: state.round is not None and state.round.phase is Phase.OPEN)
    assert drawn.round is not None
    assert drawn.round.seed == 0


async def test_while_a_secret_draws_members_are_at_work_no_other_run_draws(federation: Federation) -> None:
    """Its cohort would exclude exactly them, and of two secret draws each would exclude the other's members."""
    clients = await federation.clients("alice", "bob")
    cohort = f"{EVERYONE}\nmin_available = 1"
    secret = await federation.submit(private_job(cohort=cohort, noise=LOUD))
    for client in clients:
        await report(client, 1)  # and are free: what keeps the others away is the round
    other = await federation.submit(private_job(cohort=cohort, noise=LOUD))
    plain = await federation.submit(job())
    for run in (other, plain):
        await federation.state(run, lambda _, run=run: f"run {secret}" in federation.active(run).performer.trouble)  # type: ignore[misc]
    assert all(client.pending == 0 for client in clients)
    await federation.deadline(secret)
    await federation.ended(secret)
    attending = [asyncio.create_task(_attend(client)) for client in clients]
    try:
        await federation.deadline(other)
        for run in (other, plain):
            assert (await federation.ended(run)).status == RunStatus.FINISHED
    finally:
        for task in attending:
            task.cancel()
        await asyncio.gather(*attending, return_exceptions=True)


async def _attend(client: Client) -> None:
    while True:
        await report(client, 1)


@pytest.mark.parametrize(
    ("noise", "clip", "max_abs"),
    [("noise_multiplier = 1e-6", "1e-9", 2.0**20), ("noise_multiplier = 1e6", "1e9", 32.0)],
)
async def test_noise_that_cannot_be_drawn_is_refused_at_submit(
    federation: Federation, noise: str, clip: str, max_abs: float
) -> None:
    toml = private_job(noise=noise).decode().replace(f"clip = {CLIP}", f"clip = {clip}")
    toml = toml.replace("[aggregation]", f"[aggregation]\nmax_abs = {max_abs}")
    with pytest.raises(InvalidRequestError, match=r"units of the sum's grid|leave .* fraction bits"):
        await federation.submit(toml.encode())


async def test_a_private_model_with_batch_norms_statistics_is_refused_at_submit(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A released variance became -2.08, and NaN when the next model was used."""
    tensors = tuple(TensorSpec(name, (12,), Dtype.FLOAT32) for name in ("bn.weight", "bn.running_var"))
    monkeypatch.setattr("tests.server.runs.federation.LAYOUT", Layout(tensors))
    with pytest.raises(InvalidRequestError, match=r"tensors bn\.running_var are statistics") as refused:
        await federation.submit(private_job())
    assert "replace batch norm by group or layer norm" in refused.value.detail.remedy
    assert not await federation.store.reader.run(runs.listed, project=None)
    await federation.submit(job())


async def test_a_job_without_a_valid_account_is_refused_at_submit(federation: Federation) -> None:
    with pytest.raises(JobFileError, match=r"straggler\.late"):
        await federation.submit(private_job().replace(b"max_attempts = 1", b'late = "carry"'))


@pytest.mark.parametrize("mechanism", ["gaussian", "tree", "banded", "blt"])
async def test_a_server_that_is_started_again_in_every_round_releases_the_same_models(
    tmp_path: Path, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same secret, same reports: the same bits, whether the server stops between the rounds or not."""
    monkeypatch.setattr("atoll.server.privacy.run.new_secret", lambda: b"\x07" * 32)
    monkeypatch.setattr("atoll.server.runs.submission.new_run_id", lambda: "r0123456789ab")

    async def played(data: Path, rounds: int, restarts: bool) -> str:
        run = ""
        for done in range(rounds):
            async with opened(data) as federation:
                clients = await federation.clients("alice", "bob")  # who take turns, as one rests after each round
                if not run:
                    toml = capped(rounds, most=4, separation=2, mechanism=mechanism)
                    run = await federation.submit(toml)
                last = rounds if not restarts else done + 1
                for version in range(done, last):
                    await _one_round(federation, clients, run, version)
                if last == rounds:
                    return (await federation.ended(run)).current_model
                await _released(federation, run, last)
        raise AssertionError("unreachable")

    calm = await played(tmp_path / "calm", 4, restarts=False)
    assert await played(tmp_path / "restarted", 4, restarts=True) == calm


async def test_the_writers_thread_works_out_no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even after a restart in the middle of a round, when nothing is cached: everything would wait for it."""
    threads: list[str] = []
    by_prv = composing._by_prv

    def counted(paid: tuple[Steps, ...], delta: float) -> float:
        threads.append(threading.current_thread().name)
        return by_prv(paid, delta)

    monkeypatch.setattr(composing, "_by_prv", counted)
    async with opened(tmp_path) as federation:
        await federation.clients("alice", "bob")
        run = await federation.submit(capped(2, most=2, noise="epsilon = 4.0"))
        await federation.state(run, lambda state: _open_round(state) == 0)
    composing._answer.cache_clear()
    ledger._accounted.cache_clear()
    threads.clear()
    async with opened(tmp_path) as federation:
        await _one_round(federation, await federation.clients("alice", "bob"), run, 0)
        await _released(federation, run, 1)
    assert threads, "at least one thread"
    assert not [name for name in threads if name.startswith("store-writer")]


async def _one_round(
    federation: Federation, clients: list[Client], run: str, version: int, *, refused: bool = False
) -> str:
    """Let the only member of that round send an update; returns its name."""
    drawn = await federation.state(run, lambda state: _open_round(state) == version)
    assert drawn.round is not None
    (member,) = drawn.round.roster
    (client,) = [one for one in clients if one.name == member.participant]
    task = await client.invitation()
    await (client.refused(task.key) if refused else client.report(task.key, update_values(version)))
    return client.name


def test_the_layout_is_large_enough_for_a_deviation_to_be_judged() -> None:
    assert LAYOUT.size == 24


@pytest.mark.parametrize(("plain", "private"), [(RunPrivacy, DifferentialPrivacy), (Promise, PrivatePromise)])
def test_a_private_run_does_nothing_as_a_plain_one_does(plain: type, private: type) -> None:
    """A forgotten hook would release a sum without noise or charge."""
    hooks = {name for name in vars(plain) if not name.startswith("_")}
    assert hooks
    assert hooks <= vars(private).keys()
