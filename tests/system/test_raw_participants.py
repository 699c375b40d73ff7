"""Participants that break the protocol: the server rejects messages that the SDK would never send."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import numpy as np
import pytest

from atoll.wire.chunks import header_of
from atoll.wire.v1 import transfer_pb2
from tests.system.conftest import Hire
from tests.system.operators import job_toml
from tests.system.participants import examples_of, trained
from tests.system.raw import RawParticipant, Values, refusal
from tests.system.reference import MODEL, assert_close, averaged, shares_of
from tests.system.servers import Server

pytestmark = pytest.mark.system

SIZE = sum(values.size for values in MODEL.values())
COUNTED = transfer_pb2.ReportResponse.DISPOSITION_COUNTED
Enter = Callable[..., RawParticipant]


@pytest.fixture
def enter(shared_server: Server, tmp_path: Path) -> Iterator[Enter]:
    """Makes raw participants that are checked in, until the test ends."""
    with ExitStack() as stack:

        def make(name: str, examples: int = 10) -> RawParticipant:
            (token,) = shared_server.operator.tokens(1)
            made = stack.enter_context(closing(RawParticipant(token, tmp_path / name, examples)))
            made.check_in()
            return made

        yield make


def update_of(index: int) -> Values:
    """Return the update that participant ``index`` of ``participants.py`` sends in the first round."""
    local = trained(MODEL, index, 0)
    return np.concatenate([(local[name] - values).astype(np.float32).ravel() for name, values in MODEL.items()])


def with_value(value: float) -> Values:
    """An update with one wrong element."""
    values = np.zeros(SIZE, np.float32)
    values[77] = value
    return values


def test_updates_that_cannot_be_summed_are_rejected_and_the_round_goes_on(
    shared_server: Server, enter: Enter, hire: Hire
) -> None:
    operator = shared_server.operator
    hire(shared_server).steady(1)
    poisoner, shouter = enter("poisoner"), enter("shouter")
    toml = job_toml(job={"name": "poisoned", "rounds": 1}, cohort={"size": 3, "quorum": 1, "min_available": 3})
    run = operator.submit(toml, MODEL)
    for participant, value, code in (
        (poisoner, np.nan, "update.not_finite"),
        (shouter, 1e6, "update.out_of_range"),
    ):
        task = participant.accept()
        with pytest.raises(grpc.RpcError) as refused:
            participant.upload(task.key, with_value(value))
        status, detail = refusal(refused.value)
        assert (status, detail.code) == (grpc.StatusCode.INVALID_ARGUMENT, code)
    operator.finished(run)
    fates = {member.participant: member for member in operator.rounds(run)[0].members}
    assert fates[poisoner.name].status == fates[shouter.name].status == "rejected"
    assert "not finite" in fates[poisoner.name].detail
    assert "magnitude 1e+06" in fates[shouter.name].detail
    assert_close(operator.arrays(run), averaged(MODEL, shares_of([0]), 0))


def test_a_report_counts_once_however_often_it_comes_and_stays_as_it_is(
    shared_server: Server, enter: Enter, hire: Hire
) -> None:
    operator, crew = shared_server.operator, hire(shared_server)
    held = crew.start("Held", index=0)
    insistent = enter("insistent", examples_of(1))
    toml = job_toml(job={"name": "insistent", "rounds": 1}, cohort={"size": 2, "quorum": 2})
    run = operator.submit(toml, MODEL)
    task = insistent.accept()
    held.wait("held")
    upload_id, header = insistent.upload(task.key, update_of(1))
    first = insistent.report(task.key, upload_id, header)
    assert first.disposition == COUNTED
    assert [insistent.report(task.key, upload_id, header) for _ in range(3)] == [first] * 3
    changed = header_of(header.range, header.encoding, with_value(1.0).tobytes())
    for second in (
        lambda: insistent.upload(task.key, with_value(1.0)),
        lambda: insistent.report(task.key, upload_id, changed),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            second()
        assert refusal(refused.value)[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert insistent.report(task.key, upload_id, header, weight=1) == first  # what was acknowledged stands
    held.go()
    operator.finished(run)
    assert_close(operator.arrays(run), averaged(MODEL, shares_of([0, 1]), 0))


def test_reports_of_what_is_not_there_are_refused(shared_server: Server, enter: Enter, hire: Hire) -> None:
    operator, crew = shared_server.operator, hire(shared_server)
    held = crew.start("Held", index=0)
    careless = enter("careless", examples_of(1))
    toml = job_toml(job={"name": "careless", "rounds": 1}, cohort={"size": 2, "quorum": 2})
    run = operator.submit(toml, MODEL)
    task = careless.accept()
    held.wait("held")
    stranger = enter("stranger")  # after the draw
    whole_id, whole = careless.upload(task.key, update_of(1))
    half_id, half = careless.upload(task.key, update_of(1)[:100])
    invalid, forbidden = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED
    wrong: list[tuple[Callable[[], object], grpc.StatusCode, str]] = [
        (lambda: careless.report(task.key, half_id, half), invalid, "upload.incomplete"),
        (lambda: careless.report(task.key, whole_id, half), invalid, "upload.digest"),
        (lambda: careless.report(task.key, "0" * 32, whole), invalid, "upload.incomplete"),
        (lambda: careless.upload(task.key, update_of(1), first=1), invalid, "upload.range"),
        (lambda: stranger.upload(task.key, update_of(1)), forbidden, "round.stranger"),
        (lambda: stranger.report(task.key, whole_id, whole), forbidden, "round.stranger"),
    ]
    for attempt, status, code in wrong:
        with pytest.raises(grpc.RpcError) as refused:
            attempt()
        found = refusal(refused.value)
        assert (found[0], found[1].code) == (status, code)
    assert careless.report(task.key, whole_id, whole).disposition == COUNTED
    held.go()
    operator.finished(run)
    assert_close(operator.arrays(run), averaged(MODEL, shares_of([0, 1]), 0))


def test_a_weight_beyond_what_was_declared_is_refused(shared_server: Server, enter: Enter, hire: Hire) -> None:
    """Declared weights fix the grid on which sums cannot overflow, and bound what one participant may count for."""
    operator, crew = shared_server.operator, hire(shared_server)
    crew.steady(1)
    greedy = enter("greedy", 10)
    toml = job_toml(job={"name": "greedy", "rounds": 1}, cohort={"size": 2, "quorum": 1, "min_available": 2})
    run = operator.submit(toml, MODEL)
    task = greedy.accept()
    assert task.max_weight == 10
    upload_id, header = greedy.upload(task.key, update_of(1))
    with pytest.raises(grpc.RpcError) as refused:
        greedy.report(task.key, upload_id, header, weight=11)
    status, detail = refusal(refused.value)
    assert status in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)
    assert "11" in detail.message
    operator.finished(run)
    assert_close(operator.arrays(run), averaged(MODEL, shares_of([0]), 0))
