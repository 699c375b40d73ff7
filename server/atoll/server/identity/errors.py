"""Errors of identity, a branch of ``atoll.server.errors``.

::

    ServerError
    ├── AuthorityError                this server's own certificate authority cannot be used (the operator must fix it)
    └── CallerError
        ├── CredentialError           an operator credential file that cannot be read or written
        ├── InvalidRequestError
        │   ├── NameFormatError       a name or id of the wrong form
        │   └── CertificateRequestError   a certificate request that is not acceptable
        └── UnauthenticatedError
            ├── PeerError             a peer certificate that names no peer of this federation
            ├── RevokedError          a certificate that was revoked
            ├── SupersededError       a certificate that is not renewed: its participant has used a newer one
            └── TokenError            a join token that does not admit
                ├── TokenUnknownError     no such token, or the secret is wrong
                ├── TokenExpiredError
                ├── TokenUsedError
                └── TokenScopeError       the token is for another organisation or kind
"""

from __future__ import annotations

from typing import ClassVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from atoll.server.errors import CallerError, InvalidRequestError, ServerError, UnauthenticatedError

_NEW_TOKEN = "ask the operator of this server for a new join token"  # noqa: S105 - advice, not a secret


class AuthorityError(ServerError):
    """This server's own certificate authority cannot be used."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__("identity.authority", message, remedy)


class CredentialError(CallerError):
    """An operator credential file that cannot be read or written."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__("identity.credential", message, remedy)


class NameFormatError(InvalidRequestError):
    """A name or id of the wrong form."""

    def __init__(self, message: str) -> None:
        super().__init__("identity.name", message)


UNREADABLE = (
    ValueError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""Errors that ``cryptography`` raises for malformed certificates and requests."""


class CertificateRequestError(InvalidRequestError):
    """A certificate request that is not acceptable."""

    def __init__(self, message: str) -> None:
        super().__init__("identity.request", message, "send a PKCS #10 request in PEM, signed by its own P-256 key")


class PeerError(UnauthenticatedError):
    """A peer certificate that names no peer of this federation."""

    def __init__(self, message: str) -> None:
        super().__init__("identity.peer", message, "connect with a certificate that this server has issued")


class RevokedError(UnauthenticatedError):
    """A certificate that was revoked."""

    def __init__(self, message: str) -> None:
        super().__init__(
            "certificate.revoked", message, "ask the operator of this server for a new token or credential"
        )

    @classmethod
    def of(cls, name: str, reason: str = "") -> RevokedError:
        """The error for a participant id or operator's name."""
        return cls(f"the certificate of {name} was revoked{f': {reason}' if reason else ''}")


class SupersededError(UnauthenticatedError):
    """A certificate that is no longer renewed, because its participant has used a newer one."""

    def __init__(self, participant: str) -> None:
        super().__init__(
            "certificate.superseded",
            f"participant {participant} has used a newer certificate than this one",
            "continue with the newest certificate; if it is lost, or was not asked for by this participant, have the "
            "operator revoke the participant, and enrol again with a new join token",
        )


class TokenError(UnauthenticatedError):
    """A join token that does not admit its holder."""

    code: ClassVar[str] = "token.invalid"

    def __init__(self, message: str, remedy: str = _NEW_TOKEN) -> None:
        super().__init__(self.code, message, remedy)


class TokenUnknownError(TokenError):
    """No such token, or a wrong secret; the error does not say which."""

    code = "token.unknown"


class TokenExpiredError(TokenError):
    """The token has expired."""

    code = "token.expired"


class TokenUsedError(TokenError):
    """The token has been spent."""

    code = "token.used"


class TokenScopeError(TokenError):
    """The token is for another organisation or another kind of participant."""

    code = "token.scope"
