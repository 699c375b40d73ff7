"""Operators sign in through a real provider, to a real server over TLS, by the commands that they type."""

import asyncio
import json
import stat
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result

from atoll.operator import NotPermittedError, Operator, OperatorError, UnreachableError
from atoll.operator import signing_in as signing_in_module
from atoll.operator.sign_in import SIGN_IN_FILE, SignIn
from atoll.server.cli import sign_in as commands
from atoll.server.cli.operator import operator
from atoll.server.config.oidc_settings import OidcSettings
from atoll.wire.v1 import control_pb2, control_pb2_grpc
from tests.oidc.provider import Person, needed, provider
from tests.patience import WAIT_S
from tests.server.rpc.world import World

pytestmark = [needed, pytest.mark.slow]
Invoke = Callable[..., Result]


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with provider() as found:
        yield found


@pytest.fixture
async def world(tmp_path: Path, issuer: str) -> AsyncIterator[World]:
    roles = {"admins": "administrator", "staff": "operator", "watch": "viewer"}
    settings = OidcSettings.model_validate({"issuer": issuer, "client_id": "atoll", "roles": roles})
    async with World(tmp_path / "data", oidc=settings) as opened:
        yield opened


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(signing_in_module, "pause", lambda _: None)
    return tmp_path / "config" / "atoll" / SIGN_IN_FILE


async def invoke(*arguments: str) -> Result:
    """Run a command in a thread: the server is in this loop."""
    return await asyncio.to_thread(CliRunner().invoke, operator, arguments)


def told_to(person: Person) -> Callable[[str], None]:
    def note(words: str) -> None:
        person.open(words.split()[1])

    return note


def mode_of(path: Path) -> int | None:
    return stat.S_IMODE(path.stat().st_mode) if path.exists() else None


async def login(world: World, monkeypatch: pytest.MonkeyPatch, name: str, *more: str) -> Result:
    """Sign in by device code; the person confirms at once."""
    monkeypatch.setattr(commands, "_print_instruction", told_to(Person(name)))
    ca = str(world.config.data / "ca" / "authority.crt")
    return await invoke("login", "--device", "--server", world.addresses.sign_in, "--ca", ca, *more)


async def test_by_device_code_then_commands_need_no_credential(
    world: World, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = await login(world, monkeypatch, "staff-dora")
    assert result.exit_code == 0, result.output
    assert f"signed in to {world.addresses.sign_in} as oidc:staff-dora, operator" in result.output
    assert mode_of(config) == 0o600
    shown = json.loads((await invoke("whoami", "--json", "--data", "nowhere")).stdout)
    assert (shown["name"], shown["role"]) == ("oidc:staff-dora", "operator")
    assert shown["credential"].startswith("sign-in http://127.0.0.1:")


async def test_in_a_browser_with_pkce(world: World, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[str] = []

    def opened(address: str) -> None:
        assert "code_challenge_method=S256" in address
        threading.Thread(target=lambda: pages.append(Person("watch-eve").open(address)), daemon=True).start()

    monkeypatch.setattr(commands, "_open", opened)
    ca = str(world.config.data / "ca" / "authority.crt")
    result = await invoke("login", "--server", world.addresses.sign_in, "--ca", ca, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["name"], found["role"]) == ("oidc:watch-eve", "viewer")
    assert SignIn.read(config).refresh_token


async def test_what_one_does_is_in_the_audit_log_and_a_viewer_is_refused(
    world: World, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await login(world, monkeypatch, "watch-dora")

    def work() -> None:
        with Operator.connect(credential=config) as client:
            assert list(client.runs()) == []
            with pytest.raises(NotPermittedError, match="this needs the role operator or administrator"):
                client.make_tokens()

    await _thread(work)
    await login(world, monkeypatch, "admins-eve")

    def look() -> list[tuple[str, str, str]]:
        with Operator.connect(credential=config) as client:
            return [(one.operator, one.action, one.outcome) for one in client.audit()]

    assert await _thread(look) == [("oidc:watch-dora", "token.create", "refused")]


@pytest.mark.usefixtures("config")
async def test_the_main_port_is_not_the_one_to_sign_in_on(world: World) -> None:
    ca = str(world.config.data / "ca" / "authority.crt")
    result = await invoke("login", "--server", world.addresses.main, "--ca", ca)
    assert result.exit_code == UnreachableError.exit_code
    assert "give the port for operators who sign in: main + 4" in result.output


@pytest.mark.usefixtures("config")
async def test_a_name_without_a_role_does_not_come_in(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    result = await login(world, monkeypatch, "guest-frank")
    assert result.exit_code == NotPermittedError.exit_code
    assert "oidc:guest-frank has no role here" in result.output


async def test_a_token_is_renewed_before_it_ends(world: World, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await login(world, monkeypatch, "staff-dora")
    before = SignIn.read(config)
    replace(before, expires_at=time.time() + 5).write(config)

    def work() -> str:
        with Operator.connect(credential=config) as client:
            return client.whoami().name

    assert await _thread(work) == "oidc:staff-dora"
    after = SignIn.read(config)
    assert (after.bearer, after.refresh_token) != (before.bearer, before.refresh_token)
    assert after.expires_at > time.time() + 600
    assert mode_of(config) == 0o600


async def test_signing_out_forgets_and_revokes(world: World, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await login(world, monkeypatch, "staff-dora")
    kept = SignIn.read(config)
    result = await invoke("logout")
    assert result.output == "signed out; the provider has revoked its tokens\n"
    assert mode_of(config) is None
    replace(kept, expires_at=time.time()).write(config)
    result = await invoke("whoami", "--data", "nowhere")
    assert result.exit_code == NotPermittedError.exit_code
    assert "invalid_grant" in result.output
    assert (await invoke("logout", "--json")).exit_code == 0
    assert (await invoke("logout")).output == "you are not signed in\n"


@pytest.mark.usefixtures("config")
async def test_the_second_time_needs_neither_address_nor_authority(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "give --server HOST:PORT and --ca FILE" in (await invoke("login")).output
    await login(world, monkeypatch, "staff-dora")
    monkeypatch.setattr(commands, "_print_instruction", told_to(Person("staff-gina")))
    result = await invoke("login", "--device")
    assert "as oidc:staff-gina" in result.output


async def test_no_certificate_and_no_token_bring_nothing(world: World) -> None:
    def ask(**metadata: Any) -> str:
        with grpc.secure_channel(world.addresses.sign_in, grpc.ssl_channel_credentials(world.ca)) as channel:
            stub = control_pb2_grpc.ControlServiceStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                stub.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S, metadata=tuple(metadata.items()))
            return str(caught.value.code().name)

    assert await _thread(ask) == "UNAUTHENTICATED"
    assert await _thread(lambda: ask(authorization="Basic abc")) == "UNAUTHENTICATED"
    assert await _thread(lambda: ask(authorization="Bearer abc")) == "UNAUTHENTICATED"


@pytest.mark.usefixtures("config")
async def test_an_unconfirmed_code_expires(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing_in_module, "WAIT_S", 3.0)
    monkeypatch.setattr(commands, "_print_instruction", lambda _: None)
    ca = str(world.config.data / "ca" / "authority.crt")
    result = await invoke("login", "--device", "--server", world.addresses.sign_in, "--ca", ca)
    assert result.exit_code == OperatorError.exit_code
    assert "no one has confirmed the code in time" in result.output


async def _thread(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)
