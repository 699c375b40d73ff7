"""Networks that stall, reset, reorder or go dark, uploads that trickle: the round continues, the bits are the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import numpy as np
import pytest

from atoll.server.rpc.authentication import IDLE_S
from atoll.wire.chunks import ElementRange, UploadKey, frame_upload, header_of
from atoll.wire.encoding import Encoding
from atoll.wire.pacing import PING_ANSWER_S, PING_S
from tests.patience import WAIT_S, kept, window_s
from tests.system.conftest import Hire
from tests.system.operators import job_toml, seconds_since
from tests.system.participants import examples_of
from tests.system.proxy import Proxy, Weather
from tests.system.raw import RawParticipant, refusal
from tests.system.reference import (
    KILLED_JOB,
    KILLED_MODEL,
    KILLED_ROUNDS,
    MODEL,
    SIZE,
    assert_close,
    assert_undisturbed,
    averaged,
    shares_of,
)
from tests.system.servers import Server

pytestmark = pytest.mark.system

DARK_S = PING_S + PING_ANSWER_S
"""A silent connection is given up after so long."""


def test_over_a_network_that_stalls_resets_and_reorders_the_bits_are_the_same(
    shared_server: Server, hire: Hire, killed_undisturbed: bytes, fault_seed: int
) -> None:
    """Each participant has a network of its own; connections overtake each other and break in the middle of chunks."""
    crew = hire(shared_server, eager=True)
    with ExitStack() as stack:
        networks = []
        for index in range(SIZE):
            weather = Weather(
                seed=SIZE * fault_seed + index, delay_s=0.003, stall_share=0.005, stall_s=0.3, reset_after_bytes=6 << 20
            )
            networks.append(stack.enter_context(Proxy(shared_server.address, weather)))
            crew.start("Steady", "--server", networks[-1].address, index=index)
        run = shared_server.operator.submit(KILLED_JOB, KILLED_MODEL)
        shared_server.operator.finished(run)
        assert shared_server.operator.model(run) == killed_undisturbed
        assert_undisturbed(shared_server.operator, run, crew.clients, KILLED_ROUNDS)
        assert sum(network.resets for network in networks) > 0


def test_a_participant_whose_network_goes_dark_is_given_up_without_a_word_from_it(
    shared_server: Server, hire: Hire
) -> None:
    """No FIN, no RST: only keepalive can tell. When the network is back it takes part in the next round."""
    operator, crew = shared_server.operator, hire(shared_server)
    crew.steady(2)
    with Proxy(shared_server.address) as network:
        lost = crew.start("Held", "--server", network.address, index=2, rounds=[0])
        toml = job_toml(job={"name": "dark", "rounds": 2}, cohort={"size": 3, "quorum": 2, "min_available": 3})
        run = operator.submit(toml, MODEL)
        lost.wait("held")
        network.darken()
        since = time.monotonic()
        operator.until(run, lambda seen: seen.summary.rounds_released == 1, "through the first round")
        assert kept(seconds_since(since), DARK_S + 15.0)
        network.lighten()
        operator.finished(run)
    assert_close(operator.arrays(run), averaged(averaged(MODEL, shares_of([0, 1]), 0), shares_of([0, 1, 2]), 1))
    (member,) = [m for m in operator.rounds(run)[0].members if m.participant == lost.participant]
    assert (member.status, member.detail) == ("silent", "the connection was lost for 1 s")


def trickle(upload: UploadKey, ended: threading.Event) -> Iterator[bytes]:
    """An update, one element at a time, ten a second."""
    for at in range(10_000):
        payload = np.zeros(1, np.float32).tobytes()
        header = header_of(ElementRange.run(at, 1), Encoding.FLOAT32, payload)
        yield frame_upload(header, payload, upload if at == 0 else None)
        if ended.wait(0.1):
            return


def test_an_upload_that_trickles_neither_holds_its_round_nor_stays_open_after_it(
    shared_server: Server, hire: Hire, tmp_path: Path
) -> None:
    operator, crew = shared_server.operator, hire(shared_server)
    crew.steady(1)
    (token,) = operator.tokens(1)
    with closing(RawParticipant(token, tmp_path / "trickling", examples_of(1))) as slow:
        slow.check_in()
        window = window_s()
        toml = job_toml(
            job={"name": "trickle", "rounds": 1},
            cohort={"size": 2, "quorum": 1, "min_available": 2},
            straggler={"report_window_s": window},
        )
        run = operator.submit(toml, MODEL)
        task = slow.accept()
        ended = threading.Event()
        key = UploadKey(run, task.key.round, task.key.attempt, "0" * 32)
        call = slow.begin_upload(trickle(key, ended))
        operator.finished(run)
        over = time.monotonic()
        with pytest.raises(grpc.RpcError) as refused:
            call.result(timeout=WAIT_S)
        ended.set()
        assert kept(seconds_since(over), 10.0)
    (seen,) = operator.rounds(run)
    lasted_s = seen.closed_at - seen.opened_at
    too_slow = ("stream.slow",) if lasted_s > IDLE_S else ()  # on a machine as busy as that the other limit is first
    assert refusal(refused.value)[1].code in ("round.over", "run.ended", *too_slow)
    assert lasted_s >= window
    assert kept(lasted_s, window + 10.0)
    assert {member.status for member in seen.members} == {"reported", "timed_out"}
    assert_close(operator.arrays(run), averaged(MODEL, shares_of([0]), 0))
