"""Keys, certificates and join tokens of a federation. Cryptography only; records are kept by ``stores``."""

from atoll.server.identity.authority import (
    OPERATOR_LIFETIME_S,
    PARTICIPANT_LIFETIME_S,
    SERVER_LIFETIME_S,
    Authority,
    IssuedCertificate,
    OperatorIdentity,
    ServerKeyPair,
)
from atoll.server.identity.credentials import OPERATOR_FILE, OperatorCredential
from atoll.server.identity.errors import (
    AuthorityError,
    CertificateRequestError,
    CredentialError,
    NameFormatError,
    PeerError,
    RevokedError,
    SupersededError,
    TokenError,
    TokenExpiredError,
    TokenScopeError,
    TokenUnknownError,
    TokenUsedError,
)
from atoll.server.identity.names import (
    ParticipantKind,
    check_operator,
    check_organisation,
    check_participant_id,
    new_participant_id,
    new_run_id,
    new_token_id,
)
from atoll.server.identity.operator_roles import EVERY_ROLE, OperatorRole
from atoll.server.identity.peer import Peer, Role, fingerprint_of
from atoll.server.identity.requests import CertificateRequest, KeyWithRequest
from atoll.server.identity.tokens import MintedToken, TokenRecord, mint, verify

__all__ = [
    "EVERY_ROLE",
    "OPERATOR_FILE",
    "OPERATOR_LIFETIME_S",
    "PARTICIPANT_LIFETIME_S",
    "SERVER_LIFETIME_S",
    "Authority",
    "AuthorityError",
    "CertificateRequest",
    "CertificateRequestError",
    "CredentialError",
    "IssuedCertificate",
    "KeyWithRequest",
    "MintedToken",
    "NameFormatError",
    "OperatorCredential",
    "OperatorIdentity",
    "OperatorRole",
    "ParticipantKind",
    "Peer",
    "PeerError",
    "RevokedError",
    "Role",
    "ServerKeyPair",
    "SupersededError",
    "TokenError",
    "TokenExpiredError",
    "TokenRecord",
    "TokenScopeError",
    "TokenUnknownError",
    "TokenUsedError",
    "check_operator",
    "check_organisation",
    "check_participant_id",
    "fingerprint_of",
    "mint",
    "new_participant_id",
    "new_run_id",
    "new_token_id",
    "verify",
]
