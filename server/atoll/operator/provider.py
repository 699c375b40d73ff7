"""Requests to an OpenID Connect provider: discovery, tokens (RFC 6749), devices (RFC 8628)."""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from atoll.operator.errors import NotPermittedError, OperatorError, UnreachableError
from atoll.wire.loopback import is_loopback

REQUEST_S = 15.0
MAX_BYTES = 1 << 20
_DISCOVERY = "/.well-known/openid-configuration"


class TokenRefusedError(NotPermittedError):
    """The provider gave no token.

    Attributes:
        code: the provider's error code, such as ``authorization_pending``.
    """

    def __init__(self, code: str, words: str, remedy: str = "sign in again: atoll operator login") -> None:
        super().__init__(f"the provider gave no token: {code}{f': {words}' if words else ''}", remedy)
        self.code = code


@dataclass(frozen=True)
class Tokens:
    """A provider's tokens: the token for the server, the refresh token, and the first one's expiry."""

    bearer: str
    refresh_token: str
    expires_at: float


class Provider:
    """One provider, from its discovery document.

    Args:
        issuer: its address, as given by the server.
        client_id: Atoll's client id at the provider.
        token: which token to use, ``id`` or ``access``.
        clock: epoch seconds, UTC.

    Raises:
        OperatorError: if its address is not https, or its document is not valid for it.
    """

    def __init__(self, issuer: str, client_id: str, token: str, clock: Callable[[], float] = time.time) -> None:
        self.issuer = issuer
        self.client_id = client_id
        self._token = token
        self._id_token = token == "id"  # noqa: S105 - a kind, not a token
        self._clock = clock
        self._document = _asked(issuer.rstrip("/") + _DISCOVERY)
        if self._document.get("issuer") != issuer:
            raise OperatorError(f"the provider at {issuer} calls itself {str(self._document.get('issuer'))[:200]!r}")

    def endpoint(self, name: str) -> str:
        """The address of an endpoint, such as ``token_endpoint``; empty if the provider has none."""
        return str(self._document.get(name, ""))

    def asked(self, name: str, **fields: str) -> Mapping[str, Any]:
        """Post a form with these fields and the client's id to an endpoint, and return its answer.

        Raises:
            TokenRefusedError: if it refuses.
            UnreachableError: if it does not answer.
        """
        address = self.endpoint(name)
        if not address:
            raise OperatorError(
                f"the provider {self.issuer} has no {name}", "sign in the other way: with or without --device"
            )
        return _asked(address, {"client_id": self.client_id, **fields})

    def tokens(self, **fields: str) -> Tokens:
        """Tokens for a grant. Raises as ``asked``."""
        answer = self.asked("token_endpoint", **fields)
        bearer = answer.get(f"{self._token}_token")
        if not isinstance(bearer, str) or not bearer.isascii():
            raise OperatorError(f"the provider {self.issuer} gave no {self._token} token", "ask for the scope openid")
        lasts_s = answer.get("expires_in")
        ends = self._clock() + float(lasts_s) if isinstance(lasts_s, (int, float)) else float("inf")
        kept = answer.get("refresh_token") or fields.get("refresh_token", "")
        return Tokens(bearer, str(kept), min(_end_of(bearer), float("inf") if self._id_token else ends))

    def revoke(self, refresh_token: str) -> None:
        """Tell the provider that a refresh token is no longer needed (RFC 7009). Raises as ``asked``."""
        form = {"client_id": self.client_id, "token": refresh_token, "token_type_hint": "refresh_token"}
        _fetched(self.endpoint("revocation_endpoint"), form)


def _end_of(token: str) -> float:
    """The expiry of a JWT; unverified, because only the server's verification counts."""
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return float(claims["exp"])
    except (IndexError, ValueError, KeyError, TypeError):
        return float("inf")


def require_safe(address: str) -> None:
    """Refuse an address that is not https, except on this machine.

    Raises:
        OperatorError: if it is not.
    """
    parts = urllib.parse.urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise OperatorError(f"{address[:200]!r} is not https: tokens do not travel in plaintext")


def _asked(address: str, form: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    return _object(address, _fetched(address, form))


def _fetched(address: str, form: Mapping[str, str] | None) -> bytes:
    require_safe(address)
    body = None if form is None else urllib.parse.urlencode(form).encode()
    request = urllib.request.Request(address, body, {"Accept": "application/json"})  # noqa: S310 - require_safe
    try:
        with urllib.request.build_opener(_SafeRedirects()).open(request, timeout=REQUEST_S) as answer:
            found: bytes = answer.read(MAX_BYTES)
            return found
    except urllib.error.HTTPError as error:
        with error:
            said = _object(address, error.read(MAX_BYTES))
        raise TokenRefusedError(str(said.get("error", error.code)), str(said.get("error_description", ""))) from None
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"the provider at {address} cannot be reached: {error}", "try again") from error


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects as ``require_safe`` allows."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """See ``urllib.request``."""
        require_safe(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _object(address: str, raw: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(raw)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OperatorError(f"the answer of {address} is not a JSON object")
    return found
