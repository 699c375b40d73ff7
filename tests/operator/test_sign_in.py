"""The file of a sign-in, and the token of each call."""

import http.server
import json
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from atoll.operator import BadInputError, NotPermittedError, OperatorError, connecting, signing_in
from atoll.operator.connecting import Session, Target, find_target
from atoll.operator.provider import Provider, Tokens, require_safe
from atoll.operator.sign_in import SIGN_IN_FILE, SignIn
from tests.patience import WAIT_S

KEPT = SignIn("fl.example.org:7404", "ca", "https://login.example.org", "atoll", "id", "a.b.c", "", 1000.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "atoll" / SIGN_IN_FILE


def test_only_its_owner_can_read_it(path: Path) -> None:
    KEPT.write(path)
    assert SignIn.read(path) == KEPT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "a.b.c" not in repr(KEPT)
    path.chmod(0o640)
    with pytest.raises(NotPermittedError, match="other users may have read it"):
        SignIn.read(path)


@pytest.mark.parametrize(
    "changes", [{"format": "atoll operator 1"}, {"bearer": 7}, {"expires_at": "soon"}, {"issuer": None}, {"more": "x"}]
)
def test_what_is_no_sign_in_is_refused(path: Path, changes: dict[str, object]) -> None:
    path.parent.mkdir()
    path.write_text(json.dumps({"format": "atoll sign-in 1", **asdict(KEPT), **changes}), encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(NotPermittedError):
        SignIn.read(path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(BadInputError, match="cannot be written"):
        KEPT.write(tmp_path / "file" / SIGN_IN_FILE)


def test_without_a_refresh_token_it_serves_until_it_ends(path: Path) -> None:
    KEPT.write(path)
    assert Session(path, lambda: 999.0).token() == "a.b.c"
    with pytest.raises(NotPermittedError, match="the sign-in has ended"):
        Session(path, lambda: 1001.0).token()


def test_what_another_process_has_renewed_is_taken(path: Path) -> None:
    KEPT.write(path)
    session = Session(path, lambda: 1001.0)
    replace(KEPT, bearer="d.e.f", expires_at=5000.0).write(path)
    assert session.token() == "d.e.f"


def test_after_signing_out_elsewhere_no_token_is_renewed(path: Path) -> None:
    KEPT.write(path)
    session = Session(path, lambda: 1001.0)
    path.unlink()
    with pytest.raises(NotPermittedError, match="cannot be read"):
        session.token()


def test_a_token_for_another_server_is_not_sent_to_this_one(path: Path) -> None:
    KEPT.write(path)
    session = Session(path, lambda: 1001.0)
    replace(KEPT, address="other.example.org:7404", bearer="d.e.f", expires_at=5000.0).write(path)
    with pytest.raises(NotPermittedError, match=r"is now a sign-in to other\.example\.org:7404"):
        session.token()


@pytest.mark.parametrize("ends", ["logout", "login"])
def test_a_renewal_under_way_does_not_undo_what_comes_after_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    KEPT.write(path)
    asked, go_on = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, *_: object) -> None:
            """As the real one."""

        def tokens(self, **_: str) -> Tokens:
            asked.set()
            go_on.wait(WAIT_S)
            return Tokens("old.per.son", "more", 5000.0)

        def endpoint(self, _: str) -> str:
            return ""

    monkeypatch.setattr(connecting, "Provider", Slow)
    monkeypatch.setattr(signing_in, "Provider", Slow)
    replace(KEPT, refresh_token="r").write(path)
    with ThreadPoolExecutor() as threads:
        renewing = threads.submit(Session(path, lambda: 1001.0).token)
        assert asked.wait(WAIT_S)
        fresh = replace(KEPT, bearer="new.per.son")
        after = threads.submit(signing_in.forget, path) if ends == "logout" else threads.submit(fresh.keep, path)
        with pytest.raises(TimeoutError):
            after.result(0.2)
        go_on.set()
        assert renewing.result() == "old.per.son"
        after.result()
    assert (SignIn.read(path) == fresh) if ends == "login" else not path.exists()


def test_it_is_found_before_the_certificate_and_after_that_of_the_data_directory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    KEPT.write(path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(path.parents[1]))
    (path.parent / "operator.json").write_text("{}", encoding="utf-8")
    found = find_target(None, None, None, insecure=False)
    assert isinstance(found.credential, Session)
    assert found.address == KEPT.address
    data = path.parents[1] / "data"
    data.mkdir()
    (data / "operator.json").write_text("{}", encoding="utf-8")
    with pytest.raises(NotPermittedError, match=r"operator\.json"):
        find_target(None, None, data, insecure=False)


def test_each_call_has_the_token_and_no_other_does(path: Path) -> None:
    KEPT.write(path)
    assert Target(KEPT.address, Session(path, lambda: 0.0)).metadata == (("authorization", "Bearer a.b.c"),)
    assert "authorization" not in dict(Target("127.0.0.1:1", None).metadata)


@pytest.mark.parametrize("address", ["http://login.example.org", "file:///etc/passwd", "ftp://x", "", "//x"])
def test_tokens_do_not_travel_in_plaintext(address: str) -> None:
    with pytest.raises(OperatorError, match="is not https"):
        require_safe(address)


def test_a_redirect_does_not_lead_into_plaintext() -> None:
    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", "http://login.example.org/")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(OperatorError, match="is not https"):
            Provider(f"http://127.0.0.1:{server.server_port}", "atoll", "id")
        server.shutdown()
