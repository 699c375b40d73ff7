import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.server.process.notify import READY, notify
from tests.patience import WAIT_S


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A service manager's socket, and its name in the environment."""
    name = f"@atoll-{tmp_path}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name[1:] if name.startswith("@") else name)
        listener.settimeout(WAIT_S)
        yield listener, name


def test_the_service_manager_is_told(manager: tuple[socket.socket, str]) -> None:
    listener, name = manager
    notify(READY, {"NOTIFY_SOCKET": name})
    assert listener.recv(100) == b"READY=1"


def test_without_a_service_manager_nothing_is_sent() -> None:
    notify(READY, {})


def test_one_that_is_gone_is_logged_and_harms_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notify(READY, {"NOTIFY_SOCKET": str(tmp_path / "gone")})
    assert "READY=1" in caplog.text
