"""docs/protocol.md lists every error code that the server can send, and no other."""

import pytest

from atoll.client import Limits as ClientLimits
from atoll.client._connection.endpoint import Endpoint
from atoll.client._session.renewal import DUE_SHARE
from atoll.server.config.limits import DEFAULT_LIMITS
from atoll.server.process import listeners
from atoll.server.rpc.bounds import MAX_OPERATOR_BYTES
from atoll.server.rpc.introductions import MAX_RESUMING
from atoll.server.rpc.participation import HELLO_S
from atoll.server.runs.sessions import TAKEN_OVER_S
from atoll.wire import digest, join_token
from atoll.wire.pacing import LONGEST_PING_S, PING_S, participant_ping_ms
from atoll.wire.v1 import errors_pb2, participation_pb2
from tests.docs import error_codes


def test_the_table_of_error_codes_is_what_the_source_says() -> None:
    assert error_codes.PAGE.read_text() == error_codes.page_with(error_codes.table()), (
        "run `python -m tests.docs.error_codes`"
    )


def test_every_code_is_written_out_where_it_is_raised() -> None:
    assert error_codes.unresolved() == []


@pytest.mark.parametrize(
    "code", ["request.bytes", "request.metadata", "wire.message", "token.used", "certificate.expired", "run.missing"]
)
def test_codes_of_every_kind_of_place_are_found(code: str) -> None:
    assert code in {entry.code for entry in error_codes.entries()}


def test_every_code_has_a_meaning() -> None:
    assert [entry.code for entry in error_codes.entries() if not entry.meaning] == []


OPTIONS = listeners._options_of(listeners.Port.TRANSFER, DEFAULT_LIMITS)
PING_MS = int(dict(Endpoint("127.0.0.1:1", None, "p1")._pings)["grpc.keepalive_time_ms"])
CLIENT = ClientLimits()
STATED = [
    f"at least {OPTIONS['grpc.http2.min_ping_interval_without_data_ms'] // 1000} s apart",
    f"sends a ping every {OPTIONS['grpc.keepalive_time_ms'] // 1000} s",
    f"Atoll's client sends a ping every {PING_MS // 1000} s",
    f"the server's keepalive pings, {PING_S:g} to {LONGEST_PING_S:g} s; 0 means {PING_S:g} s",
    f"if the answer takes over {OPTIONS['grpc.http2.ping_timeout_ms'] // 1000} s",
    f"at most {OPTIONS['grpc.max_send_message_length'] >> 20} MiB, except for an invitation",
    f"(up to {MAX_OPERATOR_BYTES >> 20} MiB)",
    f"{CLIENT.connect_s:g} s for the connection and the welcome, {CLIENT.call_s:g} s for a small call",
    f"{CLIENT.stall_s:g} s without progress",
    f"{join_token.PREFIX}.<fields>.<certificate>.<checksum>",
    f"most {join_token.MAX_TOKEN_CHARS:,} characters",
    f"`Hello` (within {HELLO_S:g} s)",
    f"names the rounds (at most {MAX_RESUMING})",
    f"`after_s` is {TAKEN_OVER_S:g}, so",
    f"0 means {digest.DEFAULT_CHUNK_BYTES >> 20} MiB",
]


def test_a_client_pings_before_the_server_does() -> None:
    """Else both sides ping, which costs a server with many idle participants twice the processor time."""
    assert OPTIONS["grpc.keepalive_time_ms"] > PING_MS
    assert participant_ping_ms(LONGEST_PING_S) < 1000 * LONGEST_PING_S


@pytest.mark.parametrize("words", STATED)
def test_figures_of_the_page_are_those_of_the_code(words: str) -> None:
    assert words in " ".join(error_codes.PAGE.read_text().split())


def test_a_third_of_the_lifetime_is_left_at_renewal() -> None:
    assert pytest.approx(1 / 3) == DUE_SHARE


@pytest.mark.parametrize(
    ("names", "prefix"), [(participation_pb2.ComeBack.Cause.keys(), ""), (errors_pb2.Recovery.keys(), "RECOVERY_")]
)
def test_every_value_has_a_row(names: list[str], prefix: str) -> None:
    page = error_codes.PAGE.read_text()
    shown = [name.removeprefix(prefix) for name in names if "UNSPECIFIED" not in name]
    assert [name for name in shown if f"| `{name}` |" not in page] == []
