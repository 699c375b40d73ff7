"""Sign-in of operators through an OpenID Connect provider: ``[oidc]`` of ``server.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from atoll.server.identity import OperatorRole
from atoll.wire.loopback import is_loopback


class OidcSettings(BaseModel):
    """Operators who sign in through an OpenID Connect provider, on a separate port. See `docs/operators.md`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    issuer: Annotated[
        str | None,
        Field(
            description="The provider's issuer, exactly as in its discovery document; without it there is no sign-in."
        ),
    ] = None
    client_id: Annotated[str, Field(max_length=256, description="Atoll's client id at the provider.")] = ""
    token: Annotated[
        Literal["id", "access"],
        Field(
            description="The token that operators send: the ID token, or the access token if the provider makes it "
            "a JWT."
        ),
    ] = "id"  # noqa: S105 - a kind, not a token
    audience: Annotated[str | None, Field(description="The audience that a token must have; default: `client_id`.")] = (
        None
    )
    scopes: Annotated[
        tuple[str, ...],
        Field(description="The scopes that `atoll operator login` requests; `offline_access` gives a refresh token."),
    ] = ("openid", "offline_access")
    name_claim: Annotated[
        str,
        Field(
            min_length=1,
            description="The claim that names the operator, such as `sub` or `email` (which must be verified). The "
            "provider must never reassign its values to another person.",
        ),
    ] = "sub"
    role_claim: Annotated[
        str,
        Field(
            min_length=1,
            description="The claim with roles or groups; a dot selects a nested claim: `realm_access.roles`.",
        ),
    ] = "roles"
    roles: Annotated[
        dict[str, OperatorRole],
        Field(
            description='Role by value of that claim, such as `{fl-admins = "administrator"}`. If several match, the '
            "first of administrator, operator, privacy_officer, viewer applies. Operators without a listed value have "
            "no access."
        ),
    ] = {}
    project_roles: Annotated[
        dict[str, dict[str, OperatorRole]],
        Field(
            description="Roles in single projects: for each project, role by value of that claim, such as `{cardio = "
            '{cardio-team = "operator"}}`. There they replace a role from `roles`.'
        ),
    ] = {}
    port: Annotated[
        int | None, Field(ge=0, le=65535, description="Port for operators who sign in; default: main port + 4.")
    ] = None
    leeway_s: Annotated[float, Field(ge=0, le=300, description="Seconds by which the provider's clock may differ.")] = (
        60.0
    )
    max_token_age_s: Annotated[
        float,
        Field(
            ge=60, le=7 * 86_400, description="Seconds after which a token is refused, regardless of its own expiry."
        ),
    ] = 86_400.0
    ca: Annotated[
        Path | None,
        Field(description="PEM file of the certificate authorities to trust for the provider; default: the system's."),
    ] = None

    @model_validator(mode="after")
    def _complete(self) -> OidcSettings:
        if self.issuer is None:
            return self
        if not self.client_id:
            raise ValueError("issuer is set, and client_id is missing: name the client that the provider knows")
        if not self.roles and not any(self.project_roles.values()):
            raise ValueError('issuer is set, and roles is empty: no one would have access; roles = {VALUE = "viewer"}')
        require_safe(self.issuer)
        return self

    @property
    def sends_access_token(self) -> bool:
        """Whether operators send the access token, which identifies the client differently."""
        return self.token == "access"  # noqa: S105 - a kind, not a token

    @property
    def wanted_audience(self) -> str:
        """The audience that a token must be for."""
        return self.audience or self.client_id


def require_safe(url: str) -> None:
    """Refuse a provider address that is not https, except on this machine.

    Raises:
        ValueError: if it is not.
    """
    parts = urlsplit(url)
    local = parts.scheme == "http" and is_loopback(parts.hostname or "")
    if not parts.hostname or not (parts.scheme == "https" or local) or parts.fragment or parts.username:
        raise ValueError(f"{url[:200]!r} is not a provider's address: https://HOST/..., or http:// on this machine")
