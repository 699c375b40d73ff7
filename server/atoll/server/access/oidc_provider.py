"""The keys of an OpenID Connect provider (Discovery 1.0; JSON Web Key Sets, RFC 7517), fetched on demand."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.server.config.oidc_settings import require_safe
from atoll.server.errors import UnavailableError

if TYPE_CHECKING:
    from jwt import PyJWK

log = logging.getLogger(__name__)

FETCH_S = 10.0
MAX_BYTES = 1 << 20
COOLDOWN_S = 10.0
"""Minimum seconds between two fetches, so that made-up key ids cannot make the server flood the provider."""
FRESH_S = 600.0
"""Seconds after which keys are fetched again, so that a withdrawn key is no longer trusted."""
STALE_S = 3600.0
"""Seconds for which keys are trusted if the provider is unreachable."""
PATIENCE_S = 2.0
"""Maximum seconds that a token with a known key waits for a fetch, in case the provider hangs."""
DISCOVERY = "/.well-known/openid-configuration"

Fetch = Callable[[str], bytes]


class Keys:
    """The signing keys of one provider.

    Args:
        issuer: the issuer in the settings.
        fetch: fetches a document; called in a thread.
        steady: seconds, monotonic.
    """

    def __init__(self, issuer: str, fetch: Fetch, steady: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._steady = steady
        self._keys: Mapping[str | None, PyJWK] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None) -> PyJWK | None:
        """The key with this id; None if the provider has none.

        Raises:
            UnavailableError: if the provider is unreachable and its keys are unknown.
        """
        known = key_id in self._keys
        if not known or self._age_s > FRESH_S:
            await self._refreshed(PATIENCE_S if known and self._age_s <= STALE_S else None)
        if self._age_s > STALE_S:
            raise UnavailableError(
                "oidc.provider",
                f"the provider {self._issuer} cannot be reached: sign-ins cannot be checked",
                "try again, or use a credential with a certificate",
                retry_after_s=COOLDOWN_S,
            )
        return self._keys.get(key_id)

    @property
    def _age_s(self) -> float:
        return self._steady() - self._fetched_at

    async def _refreshed(self, wait_s: float | None) -> None:
        """Wait for a fetch in a separate task, which a cancelled caller does not end."""
        if self._fetching is None or self._fetching.done():
            if self._steady() - self._tried_at <= COOLDOWN_S:
                return
            self._tried_at = self._steady()
            self._fetching = asyncio.create_task(self._fetched(), name="oidc-keys")
        await asyncio.wait({self._fetching}, timeout=wait_s)

    async def _fetched(self) -> None:
        try:
            self._keys = await asyncio.to_thread(self._read)
        except (OSError, ValueError, TypeError, RecursionError, http.client.HTTPException) as error:
            log.warning("the keys of %s could not be fetched: %s", self._issuer, error)
            return
        self._fetched_at = self._steady()

    def _read(self) -> Mapping[str | None, PyJWK]:
        from jwt import PyJWKSet  # noqa: PLC0415 - the extra oidc; servers without sign-in do not have it
        from jwt.exceptions import PyJWTError  # noqa: PLC0415 - as above

        document = _object(self._fetch(self._issuer.rstrip("/") + DISCOVERY))
        if document.get("issuer") != self._issuer:
            raise ValueError(f"its discovery document names the issuer {str(document.get('issuer'))[:200]!r}")
        address = str(document.get("jwks_uri", ""))
        require_safe(address)
        try:
            found = PyJWKSet.from_dict(_object(self._fetch(address)))
        except PyJWTError as error:
            raise ValueError(f"its keys cannot be read: {error}") from None
        return {key.key_id: key for key in found.keys if key.public_key_use in (None, "sig") and key.key_type != "oct"}


def fetcher(ca: Path | None) -> Fetch:
    """Fetches over https, without following redirects to other schemes, up to ``MAX_BYTES``.

    Raises:
        OSError: if the CA file cannot be read.
    """
    context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects())

    def fetch(url: str) -> bytes:
        require_safe(url)
        with opener.open(
            urllib.request.Request(url, headers={"Accept": "application/json"}),  # noqa: S310 - require_safe
            timeout=FETCH_S,
        ) as answer:
            found: bytes = answer.read(MAX_BYTES + 1)
        if len(found) > MAX_BYTES:
            raise ValueError(f"{url[:200]} has more than {MAX_BYTES} bytes")
        return found

    return fetch


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which could lead into the server's own network."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """See ``urllib.request``: no further request."""


def _object(raw: bytes) -> dict[str, Any]:
    found = json.loads(raw)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - a wrong document, not a wrong argument
    return found
