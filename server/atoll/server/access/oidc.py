"""Verifies the tokens of operators who sign in (OpenID Connect Core 1.0, 3.1.3.7; JWT best practices, RFC 8725)."""

from __future__ import annotations

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.server.access.oidc_provider import Keys
from atoll.server.config.oidc_settings import OidcSettings
from atoll.server.errors import ForbiddenError, UnauthenticatedError
from atoll.server.identity import OperatorRole, ProjectRole, Rights

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signature algorithms with a public key only: neither ``none`` nor one whose key the client shares (HS256)."""
PREFIX = "oidc:"
"""Prefix of the names of operators who signed in; no operator with a certificate can have such a name."""
MAX_TOKEN_CHARS = 16_384
_NAME = re.compile(r"(?!sha256:)[A-Za-z0-9@._+|=/:-]{1,59}")
_KNOWN = 1024
_ORDER = (OperatorRole.ADMINISTRATOR, OperatorRole.OPERATOR, OperatorRole.PRIVACY_OFFICER, OperatorRole.VIEWER)
_AGAIN = "sign in again: atoll operator login"


class TokenEndedError(UnauthenticatedError):
    """The token was valid and has expired."""


@dataclass(frozen=True)
class SignedIn:
    """The operator of a token, and when the token expires (epoch seconds UTC)."""

    name: str
    rights: Rights
    expires_at: float


@dataclass(frozen=True)
class _Known:
    """A valid token: its operator, and the key that verified its signature."""

    signed_in: SignedIn
    key: PyJWK


class TokenVerifier:
    """Verifies tokens of one provider; caches recent valid ones until the keys are fetched again.

    Args:
        settings: sign-in settings with an issuer.
        keys: the provider's keys.
        clock: epoch seconds, UTC.
    """

    def __init__(self, settings: OidcSettings, keys: Keys, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._keys = keys
        self._clock = clock
        self._known: OrderedDict[bytes, _Known] = OrderedDict()

    async def verify(self, token: str) -> SignedIn:
        """The operator of a token.

        Raises:
            UnauthenticatedError: if the provider did not issue it, it is for another audience, or it is not valid now.
            TokenEndedError: if it has expired.
            ForbiddenError: if it grants no role.
            UnavailableError: if the provider's keys are unknown.
        """
        mark = _mark(token)
        known = self._known.get(mark)
        if known is None or await self._keys.find(known.key.key_id) is not known.key:
            self._known.pop(mark, None)
            claims, key = await self._claims(token)
            known = _Known(self._signed_in(claims), key)
        found = known.signed_in
        if found.expires_at + self._settings.leeway_s <= self._clock():
            self._known.pop(mark, None)
            raise TokenEndedError("oidc.expired", f"the token of {found.name} has ended", _AGAIN)
        self._known[mark] = known
        self._known.move_to_end(mark)
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return found

    def knows(self, token: str) -> bool:
        """Whether this token was valid and is cached."""
        return _mark(token) in self._known

    async def _claims(self, token: str) -> tuple[Mapping[str, Any], PyJWK]:
        import jwt  # noqa: PLC0415 - the extra oidc; servers without sign-in do not have it

        if len(token) > MAX_TOKEN_CHARS:
            raise _bad(f"it has over {MAX_TOKEN_CHARS} characters")
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise _bad(f"its algorithm {str(header.get('alg'))[:20]!r} is not allowed")
            key = await self._keys.find(header.get("kid"))
            if key is None:
                raise _bad("the provider has no such key")
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[header["alg"]],
                audience=self._settings.wanted_audience,
                issuer=self._settings.issuer,
                leeway=self._settings.leeway_s,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            raise TokenEndedError("oidc.expired", "the token has ended", _AGAIN) from None
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise _bad(str(error)) from None
        return claims, key

    def _signed_in(self, claims: Mapping[str, Any]) -> SignedIn:
        settings = self._settings
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if (several or "azp" in claims) and not settings.sends_access_token and claims.get("azp") != settings.client_id:
            raise _bad(f"it was made for the client {str(claims.get('azp'))[:60]!r}")
        name = PREFIX + _short(self._named(claims))
        return SignedIn(
            name, self._rights(name, claims), min(float(claims["exp"]), float(claims["iat"]) + settings.max_token_age_s)
        )

    def _named(self, claims: Mapping[str, Any]) -> str:
        claim = self._settings.name_claim
        value = claims.get(claim)
        if not isinstance(value, str) or not value:
            raise _bad(f"it has no claim {claim!r}")
        if claim == "email" and claims.get("email_verified") is not True:
            raise _bad("its e-mail address is not verified by the provider")
        return value

    def _rights(self, name: str, claims: Mapping[str, Any]) -> Rights:
        found: Any = claims
        for part in self._settings.role_claim.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        values = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        groups = frozenset(value for value in values if isinstance(value, str))
        everywhere = _first(groups, self._settings.roles)
        within = {project: _first(groups, given) for project, given in self._settings.project_roles.items()}
        found_roles = {project: ProjectRole(role) for project, role in within.items() if role is not None}
        if everywhere is None and not found_roles:
            known = {*self._settings.roles, *(one for given in self._settings.project_roles.values() for one in given)}
            raise ForbiddenError(
                "oidc.role",
                f"{name} has no role here: claim {self._settings.role_claim} contains none that the server knows",
                f"ask who runs the provider for one of {', '.join(sorted(known))}",
            )
        return Rights(everywhere, found_roles)


def _first(groups: frozenset[str], given: Mapping[str, OperatorRole]) -> OperatorRole | None:
    """The most powerful of the roles that these groups grant."""
    roles = {given[group] for group in groups & given.keys()}
    return next((role for role in _ORDER if role in roles), None)


def _mark(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _short(value: str) -> str:
    """The value, or a digest if it is too long or has unusual characters; columns and tables hold 64 characters."""
    return value if _NAME.fullmatch(value) else f"sha256:{hashlib.sha256(value.encode()).hexdigest()[:40]}"


def _bad(why: str) -> UnauthenticatedError:
    return UnauthenticatedError("oidc.token", f"the token is not accepted: {why[:200]}", _AGAIN)
