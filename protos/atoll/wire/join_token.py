"""Join tokens: the self-contained text with which a newcomer joins a federation.

::

    atoll-join-1.<fields>.<certificate>.<checksum>

``fields`` is base64url of compact JSON (``address``, ``id``, ``secret``, in this order), ``certificate`` base64url of
the federation CA's certificate in DER, ``checksum`` base64url of the first 9 bytes of the SHA-256 of all text before
its dot. base64url is written without padding (RFC 4648, section 5). The token contains the certificate, so that the
first connection is already verified. The secret can be used once, by that connection.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from atoll.wire.errors import JoinTokenError

PREFIX = "atoll-join-1"
MAX_TOKEN_CHARS = 16_384
_FAMILY = "atoll-join-"
_FIELDS = ("address", "id", "secret")
_CHECKSUM_BYTES = 9
_REMEDY = "copy the whole token again, or ask the operator for a new one"


@dataclass(frozen=True)
class JoinToken:
    """The address to enrol at, the certificate authority to trust there, and the secret to enrol with.

    ``address`` is the enrolment port as ``host:port``; ``ca_certificate_pem`` the federation CA's certificate.

    Raises:
        JoinTokenError: for an address without a port, an empty id or secret, or a certificate that is not a CA's.
    """

    address: str
    ca_certificate_pem: bytes
    token_id: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
            raise JoinTokenError(f"server address {self.address!r} in the join token: expected host:port")
        if not self.token_id or not self.secret:
            raise JoinTokenError("a join token needs an id and a secret")
        _require_ca(_parse_pem(self.ca_certificate_pem))

    def encode(self) -> str:
        """The token as text. Keep it secret until it is used."""
        values = dict(zip(_FIELDS, (self.address, self.token_id, self.secret), strict=True))
        fields = json.dumps(values, separators=(",", ":")).encode()
        der = _parse_pem(self.ca_certificate_pem).public_bytes(Encoding.DER)
        body = f"{PREFIX}.{_to_text(fields)}.{_to_text(der)}"
        return f"{body}.{_checksum(body)}"

    @classmethod
    def decode(cls, text: str) -> JoinToken:
        """Read a pasted token; line breaks and spaces are ignored.

        Raises:
            JoinTokenError: if it is not a join token, has another version, or is truncated or mistyped.
        """
        fields, certificate = _checked_parts(text)
        try:
            values = json.loads(_from_text(fields))
            der = x509.load_der_x509_certificate(_from_text(certificate))
        except (ValueError, RecursionError, x509.InvalidVersion) as error:
            raise JoinTokenError(f"the join token's content cannot be read ({error}); {_REMEDY}") from None
        if not isinstance(values, dict) or any(not isinstance(values.get(name), str) for name in _FIELDS):
            raise JoinTokenError(f"the join token lacks one of {', '.join(_FIELDS)}; {_REMEDY}")
        return cls(values["address"], der.public_bytes(Encoding.PEM), values["id"], values["secret"])


def _checked_parts(text: str) -> tuple[str, str]:
    """The two content parts of a token, after its prefix and checksum have been checked."""
    if len(text) > MAX_TOKEN_CHARS:
        raise JoinTokenError(f"{len(text)} characters are too many for a join token (at most {MAX_TOKEN_CHARS})")
    if not text.isascii():
        raise JoinTokenError(f"the join token has characters that no token has; {_REMEDY}")
    joined = "".join(text.split())
    prefix, _, rest = joined.partition(".")
    if prefix != PREFIX:
        if prefix.startswith(_FAMILY):
            raise JoinTokenError(f"join token of version {prefix[:40]!r}: this program reads {PREFIX}; upgrade it")
        raise JoinTokenError(f"not a join token: it starts with {joined[:12]!r}, expected {PREFIX!r}")
    parts = rest.split(".")
    if len(parts) < 3 or len(parts[2]) < len(_checksum("")):
        raise JoinTokenError(f"the join token was cut short after {len(joined)} characters; {_REMEDY}")
    body, _, checksum = joined.rpartition(".")
    if len(parts) != 3 or checksum != _checksum(body):
        raise JoinTokenError(f"the join token's checksum does not match, so a character is wrong; {_REMEDY}")
    return parts[0], parts[1]


def _checksum(body: str) -> str:
    return _to_text(hashlib.sha256(body.encode()).digest()[:_CHECKSUM_BYTES])


def _to_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _from_text(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _parse_pem(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise JoinTokenError(f"the CA certificate for the join token is not PEM: {error}") from None


def _require_ca(certificate: x509.Certificate) -> None:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        raise JoinTokenError("the certificate in the join token is not a certificate authority's") from None
    if not constraints.ca:
        raise JoinTokenError("the certificate in the join token is not a certificate authority's")
