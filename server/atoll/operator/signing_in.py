"""Sign in with a browser on this machine (RFC 8252, PKCE of RFC 7636) or on another device (RFC 8628)."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.server
import secrets
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from atoll.operator.errors import NotPermittedError, OperatorError, TimedOutError, UnreachableError, translated
from atoll.operator.provider import Provider, TokenRefusedError, Tokens, require_safe
from atoll.operator.sign_in import SignIn, locked
from atoll.text.printable import printable
from atoll.wire.v1 import control_pb2, control_pb2_grpc

WAIT_S = 300.0
"""Seconds within which a person must sign in."""
_ASK_S = 15.0
_WHICH_PORT = "give the port for operators who sign in: main + 4, on a server with [oidc] in server.toml"
pause = time.sleep
"""Seconds between two polls of the provider, which does not push the person's confirmation."""
_PAGE = b"<!doctype html><meta charset=utf-8><title>Atoll</title><p>%s You can close this page.</p>"


@dataclass(frozen=True)
class Place:
    """A server's instructions for signing in.

    Attributes:
        address: host:port of the server's port for operators who sign in.
        ca_certificate: PEM.
        provider: the provider.
        scopes: scopes to request from it.
        token: which token the server accepts.
    """

    address: str
    ca_certificate: str
    provider: Provider
    scopes: Sequence[str]
    token: str

    def signed_in(self, tokens: Tokens) -> SignIn:
        """The sign-in with these tokens."""
        own = self.provider
        return SignIn(
            self.address,
            self.ca_certificate,
            own.issuer,
            own.client_id,
            self.token,
            tokens.bearer,
            tokens.refresh_token,
            tokens.expires_at,
        )


def ask_server(address: str, ca_certificate: str) -> Place:
    """Ask a server where to sign in.

    Raises:
        OperatorError: if it does not answer.
    """
    credentials, request = grpc.ssl_channel_credentials(ca_certificate.encode()), control_pb2.GetSignInRequest()
    try:
        with grpc.secure_channel(address, credentials) as channel, translated(address):
            found = control_pb2_grpc.SignInServiceStub(channel).GetSignIn(request, timeout=_ASK_S)
    except UnreachableError as error:
        raise UnreachableError(error.message, _WHICH_PORT) from error
    provider = Provider(found.issuer, found.client_id, found.token)
    return Place(address, ca_certificate, provider, tuple(found.scopes), found.token)


def by_device(place: Place, show: Callable[[str], None]) -> SignIn:
    """Sign in on another device: ``show`` is called with an instruction for the person.

    Raises:
        NotPermittedError: if the person, or the provider, refuses.
        TimedOutError: if the code expires first.
    """
    own = place.provider
    begun = own.asked("device_authorization_endpoint", scope=" ".join(place.scopes))
    where = str(begun.get("verification_uri_complete") or begun.get("verification_uri", ""))
    require_safe(where)
    show(f"open {printable(where)} and confirm the code {printable(str(begun.get('user_code', '')))}")
    interval_s = min(60.0, max(1.0, _seconds(begun.get("interval"), 5.0)))
    left_s = min(WAIT_S, _seconds(begun.get("expires_in"), WAIT_S))
    grant = {
        "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
        "device_code": str(begun.get("device_code", "")),
    }
    while left_s > 0:
        pause(interval_s)
        left_s -= interval_s
        try:
            return place.signed_in(own.tokens(**grant))
        except TokenRefusedError as error:
            if error.code == "slow_down":
                interval_s += 5.0
            elif error.code != "authorization_pending":
                raise
    raise TimedOutError("no one has confirmed the code in time", "sign in again")


def by_browser(place: Place, open_page: Callable[[str], object]) -> SignIn:
    """Sign in in a browser on this machine: ``open_page`` is called with the address to open.

    Raises:
        NotPermittedError: if the person, or the provider, refuses.
        TimedOutError: if nothing came back in time.
    """
    own, state, verifier = place.provider, secrets.token_urlsafe(32), secrets.token_urlsafe(48)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    with _Callback(state) as callback:
        asked = {
            "response_type": "code",
            "client_id": own.client_id,
            "redirect_uri": callback.address,
            "scope": " ".join(place.scopes),
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        if "offline_access" in place.scopes:
            asked["prompt"] = "consent"  # without it no refresh token (OpenID Connect Core 1.0, 11)
        endpoint = own.endpoint("authorization_endpoint")
        require_safe(endpoint)
        open_page(f"{endpoint}?{urllib.parse.urlencode(asked)}")
        code = callback.wait()
        return place.signed_in(
            own.tokens(
                grant_type="authorization_code", code=code, redirect_uri=callback.address, code_verifier=verifier
            )
        )


def _seconds(value: object, default: float) -> float:
    return float(value) if isinstance(value, (int, float)) else default


class _Callback:
    """Waits on a free port of 127.0.0.1 for the browser to return with a code."""

    def __init__(self, state: str) -> None:
        self._state = state
        self._came = threading.Event()
        self._code = self._refused = ""
        callback = self

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = _ASK_S

            def do_GET(self) -> None:
                words = callback.take(self.path)
                self.send_response(200 if words else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Security-Policy", "default-src 'none'")
                self.end_headers()
                self.wfile.write(_PAGE % (words or "There is nothing here.").encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Addresses contain codes, so they are not logged."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/callback"

    def __enter__(self) -> _Callback:
        threading.Thread(target=self._server.serve_forever, name="sign-in", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, path: str) -> str:
        """Accept the browser's answer, once and with our state; return the text to show, empty for anything else."""
        parts = urllib.parse.urlsplit(path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        if parts.path != "/callback" or self._came.is_set():
            return ""
        if not hmac.compare_digest(query.get("state", "").encode(), self._state.encode()):
            return ""
        self._code, self._refused = query.get("code", ""), query.get("error", "")
        self._came.set()
        return "You have signed in." if self._code else "You have not signed in."

    def wait(self) -> str:
        """The code. Raises as ``by_browser``."""
        if not self._came.wait(WAIT_S):
            raise TimedOutError("the browser has not come back in time", "sign in again, or use --device")
        if not self._code:
            raise NotPermittedError(f"the provider refused: {printable(self._refused)}", "sign in again")
        return self._code


def forget(path: Path) -> bool:
    """Remove a sign-in, and revoke its tokens if the provider can (RFC 7009); return whether it did.

    Raises:
        OperatorError: if the file cannot be removed.
    """
    revoked = False
    with locked(path):  # else a running renewal would write it again
        with contextlib.suppress(OperatorError):  # the tokens expire on their own
            own = SignIn.read(path)
            provider = Provider(own.issuer, own.client_id, own.token)
            if own.refresh_token and provider.endpoint("revocation_endpoint"):
                provider.revoke(own.refresh_token)
                revoked = True
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise OperatorError(f"{path} cannot be removed: {error.strerror}") from error
    return revoked


def certificate_file(path: Path) -> str:
    """The server's authority (PEM) from a file.

    Raises:
        OperatorError: if it cannot be read.
    """
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise OperatorError(f"{path} cannot be read: {error}", "it is ca/authority.crt of the server's data") from error
