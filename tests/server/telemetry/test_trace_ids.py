import re

from atoll.server.rounds import RoundKey
from atoll.server.telemetry.trace_ids import span_id, trace_id, traceparent

KEY = RoundKey(3, 1)


def test_the_same_attempt_has_the_same_trace_in_every_process() -> None:
    assert trace_id("r1", KEY) == trace_id("r1", RoundKey(3, 1))
    others = [trace_id(run, key) for run, key in [("r1", RoundKey(3, 0)), ("r1", RoundKey(31, 0)), ("r2", KEY)]]
    assert len({trace_id("r1", KEY), *others}) == 4
    assert len({span_id("r1", KEY), span_id("r1", KEY, "pa"), span_id("r1", KEY, "pb")}) == 3


def test_the_context_is_that_of_w3c_level_1() -> None:
    text = traceparent("r1", KEY, "pa", sampled=True)
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", text)
    assert text.split("-")[1:3] == [f"{trace_id('r1', KEY):032x}", f"{span_id('r1', KEY, 'pa'):016x}"]
    assert traceparent("r1", KEY, "pa", sampled=False).endswith("-00")
