"""Participants' text on the operator's terminal: no command prints its control characters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import grpc
import pytest
from click.testing import CliRunner, Result
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from atoll.client.cli.app import Rooms, atoll
from atoll.wire.messages import layout_to_proto
from atoll.wire.status import ErrorDetail, Fault
from atoll.wire.v1 import tensors_pb2
from tests.server.cli.conftest import LAYOUT

pytestmark = pytest.mark.slow

FORGED = "round 5/5 released, 4 of 4 reported"
HOSTILE = (
    f"\x1b[2J\x1b]0;owned\x07\r\n{FORGED}\n\x9b31m\x7f\u202egpj\u2066\u2028\u200b[link=x][/nope]$\\frac{{ ^_$"
    "<script>alert(1)</script>"
)
SERVICE = "atoll.wire.v1.ControlService"


def filled(message: Message) -> Message:
    """A message with hostile text in every string, also of nested messages, and ones and zeros elsewhere."""
    for field in message.DESCRIPTOR.fields:
        if field.name == "next":  # of a page; there is none
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            kind = field.message_type.fields_by_name["value"].type
            getattr(message, field.name)[HOSTILE] = HOSTILE if kind == FieldDescriptor.TYPE_STRING else 0.5
        elif field.message_type is not None and field.message_type.full_name == tensors_pb2.Layout.DESCRIPTOR.full_name:
            getattr(message, field.name).CopyFrom(layout_to_proto(LAYOUT))
        elif field.message_type is not None:
            within = getattr(message, field.name)
            filled(within.add() if field.is_repeated else within)
        elif field.type == FieldDescriptor.TYPE_STRING:
            if field.is_repeated:
                getattr(message, field.name).append(HOSTILE)
            else:
                setattr(message, field.name, PHASES.get((message.DESCRIPTOR.name, field.name), HOSTILE))
        elif field.enum_type is not None and not field.is_repeated:
            setattr(message, field.name, field.enum_type.values[-1].number)
    return message


PHASES = {
    ("RoundSummary", "phase"): "abandoned",
    ("RoundSummary", "kind"): "train",
}
"""Words of the server's own that choose what is shown."""


class Hostile(grpc.GenericRpcHandler):
    """Answers every call of the control service with hostile text, or refuses it with such text."""

    def __init__(self) -> None:
        self.refuses = False
        service = descriptor_pool.Default().FindServiceByName(SERVICE)
        self._methods: dict[str, MethodDescriptor] = {f"/{SERVICE}/{method.name}": method for method in service.methods}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = self._methods.get(handler_call_details.method)
        if method is None:
            return None
        answer_type = message_factory.GetMessageClass(method.output_type)

        def answer(_: Any, context: grpc.ServicerContext) -> Message:
            if self.refuses:
                detail = ErrorDetail("run.missing", Fault.CALLER, HOSTILE, HOSTILE)
                context.set_trailing_metadata((detail.trailer(),))
                context.abort(grpc.StatusCode.NOT_FOUND, "hostile")
            return filled(answer_type())

        def answers(asked: Any, context: grpc.ServicerContext) -> Iterator[Message]:
            yield answer(asked, context)

        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(answers, response_serializer=_serialized)
        if method.client_streaming:
            return grpc.stream_unary_rpc_method_handler(answer, response_serializer=_serialized)
        return grpc.unary_unary_rpc_method_handler(answer, response_serializer=_serialized)


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


@pytest.fixture
def hostile() -> Iterator[tuple[Hostile, str]]:
    handler = Hostile()
    server = grpc.server(ThreadPoolExecutor(4), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield handler, f"127.0.0.1:{port}"
    server.stop(None).wait()


COMMANDS: dict[tuple[str, ...], list[tuple[str, ...]]] = {
    ("run", "list"): [()],
    ("run", "show"): [("r1",), ("r1", "--members"), ("latest", "--round", "1"), ("r1", "--by-participant")],
    ("run", "stats"): [("r1",), ("r1", "-o", "statistics.json", "--csv", "statistics.csv")],
    ("run", "watch"): [("r1",)],
    ("run", "pause"): [("r1",)],
    ("run", "resume"): [("r1",)],
    ("run", "cancel"): [("r1",)],
    ("run", "extend"): [("r1", "--rounds", "2")],
    ("run", "delete"): [("latest", "--yes"), ("latest",)],
    ("run", "model"): [("r1", "-o", "model.safetensors")],
    ("run", "report"): [("r1", "-o", "report.html")],
    ("run", "history"): [("r1", "-o", "rounds.csv"), ("r1", "-o", "people.parquet", "--by-participant")],
    ("run", "export"): [("r1", "-o", "model"), ("r1", "-o", "best", "--best", "--data-statistics", "r2")],
    ("run", "tensorboard"): [("r1", "latest", "--logdir", "board"), ("r1", "--logdir", "board", "--follow")],
    ("run", "mlflow"): [("r1", "--tracking-uri", "sqlite:///hostile.db")],
    ("run", "compare"): [("r1", "latest"), ("r1", "r2", "-o", "comparison.html")],
    ("run", "submit"): [("job.toml",)],
    ("participants", "list"): [()],
    ("participants", "revoke"): [("p1",)],
    ("operator", "list"): [()],
    ("operator", "new"): [("dora", "-o", "dora.json")],
    ("operator", "revoke"): [("dora",)],
    ("operator", "role"): [("dora", "viewer")],
    ("operator", "whoami"): [()],
    ("token", "new"): [()],
    ("token", "list"): [()],
    ("token", "void"): [("t1",), ("--made-by", "dora")],
    ("project", "new"): [("cardio",)],
    ("project", "list"): [()],
    ("project", "show"): [("cardio",)],
    ("project", "quota"): [("cardio", "--runs", "2")],
    ("project", "close"): [("cardio",)],
    ("project", "use"): [("cardio",)],
    ("privacy", "ledger"): [(), ("--population", "p"), ("--participant", "p"), ("--run", "latest")],
    ("privacy", "limit"): [("p", "--epsilon", "1", "--delta", "1e-6")],
    ("server", "prune"): [()],
    ("server", "audit"): [(), ("--verify",)],
    ("server", "log"): [(), ("--level", "error")],
    ("stats",): [("statistics.toml",)],
    ("doctor",): [()],
}
"""Each command that calls a server, with its arguments; the test below names missing commands."""
TRIED_ELSEWHERE = {("console",)}
"""A command that serves pages; tests/console/test_hostile_text.py tries these."""
STATISTICS = """
[job]
name = "x"
[cohort]
size = 4
[statistics]
numeric = ["age"]
"""
CALLS = [(command, given) for command, gifts in COMMANDS.items() for given in gifts]


def connected(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from connected(command, (*path, name))
        elif command is not None and {"insecure", "credentials"} <= {one.name for one in command.params}:
            yield (*path, name)


def test_every_command_that_asks_a_server_is_tried() -> None:
    assert isinstance(atoll, Rooms)
    assert set(connected(atoll)) == set(COMMANDS) | TRIED_ELSEWHERE


def run(address: str, command: tuple[str, ...], given: tuple[str, ...]) -> Result:
    arguments = [*command, *given, "--insecure", "--server", address]
    return CliRunner().invoke(atoll, arguments, input="y\n")


def assert_harmless(shown: str, *, forged: bool = True) -> None:
    assert not {char for char in shown if not char.isprintable()} - {"\n"}
    assert not forged or not [line for line in shown.splitlines() if line.lstrip().startswith(FORGED)]


@pytest.mark.parametrize(("command", "given"), CALLS, ids=" ".join)
@pytest.mark.parametrize("refuses", [False, True])
def test_no_command_passes_it_on(
    hostile: tuple[Hostile, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    given: tuple[str, ...],
    *,
    refuses: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text("[job]\nname = 'x'\n", encoding="utf-8")
    (tmp_path / "statistics.toml").write_text(STATISTICS, encoding="utf-8")
    handler, address = hostile
    handler.refuses = refuses
    result = run(address, command, given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert_harmless(result.output, forged=not refuses)  # a server's own errors may have several lines
    for page in tmp_path.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "<script>alert" not in text
        assert "&lt;script&gt;" in text
        assert "\x1b" not in text
        assert "\u202e" not in text


@pytest.mark.parametrize("command", [("run", "list"), ("run", "show", "r1"), ("participants", "list")])
def test_json_is_escaped_by_its_own_rules(hostile: tuple[Hostile, str], command: tuple[str, ...]) -> None:
    result = run(hostile[1], command, ("--json",))
    assert_harmless(result.output)
    assert json.loads(result.stdout)
