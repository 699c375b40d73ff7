"""``atoll console`` as a process: its link, its ends, TLS."""

from __future__ import annotations

import datetime
import ipaddress
import json
import signal
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from atoll.client.cli import app
from tests.console.browser import Browser
from tests.patience import WAIT_S
from tests.server.cli.conftest import Fake
from tests.system.processes import ATOLL

pytestmark = pytest.mark.system


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Commands that a test starts; those that it has not ended are killed."""
    found: list[subprocess.Popen[str]] = []
    yield found
    for process in found:
        process.kill()
        process.communicate()


def start(fake: Fake, started: list[subprocess.Popen[str]], *options: str) -> subprocess.Popen[str]:
    command = [*ATOLL, "console", "--insecure", "--server", fake.address, *options]
    started.append(
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    )
    return started[-1]


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_a_link_and_stops_in_peace(
    fake: Fake, started: list[subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = start(fake, started, "--port", "0")
    link = line_of(process)
    browser = Browser(int(link.split(":")[2].partition("/")[0]))
    assert browser.open(link).status == 200
    assert "digits" in browser.get("/").text
    process.send_signal(number)
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert out == ""
    assert f"opens the console of {fake.address}, version 9.9" in err
    assert "Traceback" not in err


def test_the_link_as_json(fake: Fake, started: list[subprocess.Popen[str]]) -> None:
    found = json.loads(line_of(start(fake, started, "--port", "0", "--json")))
    assert found["server"] == fake.address
    assert found["link"].startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "192.0.2.1"), "--host 192.0.2.1 is not a loopback address"),
        (("--port", "PORT"), "cannot listen on 127.0.0.1:PORT: Address already in use"),
        (("--port", "0", "--tls-certificate", "none.pem", "--tls-key", "none.pem"), "none.pem cannot be used"),
    ],
)
def test_it_says_what_is_wrong(
    fake: Fake, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = [one.replace("PORT", port) for one in options]
        assert app.run_cli(["console", "--insecure", "--server", fake.address, *given]) == 2
    err = capsys.readouterr().err
    assert said.replace("PORT", port) in err
    assert "What to do: " in err
    assert "Traceback" not in err


def test_an_unreachable_server(fake: Fake, started: list[subprocess.Popen[str]]) -> None:
    fake.stop()
    process = start(fake, started, "--port", "0")
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 3
    assert "cannot reach the server" in err


def test_over_tls_the_cookie_stays_on_tls(fake: Fake, started: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    link = line_of(start(fake, started, "--port", "0", "--tls-certificate", str(chain), "--tls-key", str(key)))
    assert link.startswith("https://127.0.0.1:")
    with urllib.request.urlopen(  # noqa: S310 - the address is ours
        link, context=ssl.create_default_context(cafile=str(chain)), timeout=WAIT_S
    ) as answer:
        cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-atoll-console-")
    assert "; Secure" in cookie


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain_file, key_file = folder / "chain.pem", folder / "key.pem"
    chain_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return chain_file, key_file
