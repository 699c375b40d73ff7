"""Enrolment with a join token, and renewal of the certificate: a new key and certificate for the identity."""

from __future__ import annotations

import base64
import json
import logging
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import grpc

from atoll.client._clock import now_s
from atoll.client._connection.backoff import Backoff
from atoll.client._connection.identity import FILE_NAME, Identity, load, store
from atoll.client._connection.keys import certificate_of, fingerprint, make_csr, make_key, private_key, public_key
from atoll.client._connection.refusals import error_of, raw_text_of, refusal_of, retry_after_s
from atoll.client._state.files import read_private, replace_file
from atoll.client.errors import NotPermittedError, RefusedError, UnreachableError, UsageError
from atoll.client.limits import Limits
from atoll.text.connections import is_plaintext, is_untrusted
from atoll.wire.renewal import renewal_proof
from atoll.wire.v1 import enrolment_pb2, enrolment_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("atoll.client")

T = TypeVar("T")
PENDING_NAME = "enrolling.json"
ENROL_TIMEOUT_S = 60.0
"""Time for which enrolment is retried while the server is busy or unreachable."""
TRY_S = 15.0
"""The longest wait for the answer to one try."""
_KINDS = {enrolment_pb2.PARTICIPANT_KIND_EDGE: "edge", enrolment_pb2.PARTICIPANT_KIND_SILO: "silo"}
_TOKEN_PARTS = 4
"""Number of a join token's dot-separated parts; the third is the certificate of the federation's authority."""


def enrol(join_token: str, state: Path, timeout_s: float = ENROL_TIMEOUT_S) -> Identity:
    """Enrol with a join token and store the identity. An existing identity is kept, and the token is not used.

    The key generated for a token is kept until the server has answered, so a retry after a lost answer uses the same
    key.

    Raises:
        JoinTokenError: for a token that is truncated or mistyped.
        UsageError: if the stored identity belongs to another federation than the token.
        NotPermittedError: if the token is wrong, expired or used.
        UnreachableError: if the server did not answer, or refused for now, for ``timeout_s``.
        RefusedError: if it refuses for another reason.
    """
    known = load(state)
    if known is not None:
        _check_federation(known, join_token, state / FILE_NAME)
        return known
    from atoll.wire.join_token import JoinToken  # noqa: PLC0415  # loads cryptography (10 MB), which only enrolment needs

    token = JoinToken.decode(join_token)
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    key_pem = _pending_key(state, token.token_id)
    request = enrolment_pb2.EnrolRequest(
        token_id=token.token_id, secret=token.secret, csr_pem=make_csr(key_pem), client_version=version("atoll")
    )
    port = EnrolmentPort(token.address, token.ca_certificate_pem)
    answer = port.call("the join token", timeout_s, lambda stub, left_s: stub.Enrol(request, timeout=left_s))
    identity = Identity(
        participant=answer.participant,
        organisation=answer.organisation,
        kind=_KINDS.get(answer.kind, "edge"),
        server_address=answer.server_address,
        certificate_pem=_text_of(answer.certificate_pem),
        ca_certificate_pem=_text_of(answer.ca_certificate_pem),
        key_pem=key_pem,
        enrolment_address=token.address,
    )
    _check_pair(identity)
    store(state, identity)
    (state / PENDING_NAME).unlink(missing_ok=True)
    return identity


def renewal_signature(identity: Identity, csr_pem: bytes) -> bytes:
    """The identity's signature under a request for its next certificate."""
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415  # see enrol
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    return private_key(identity.key_pem).sign(renewal_proof(csr_pem), ec.ECDSA(hashes.SHA256()))


def renewed(
    identity: Identity, answer: enrolment_pb2.RenewResponse | enrolment_pb2.RenewExpiredResponse, key_pem: str
) -> Identity:
    """The identity with a new key and the certificate that a renewal gave for it.

    Raises:
        RefusedError: if the certificate is not for that key, or the CA's certificate cannot be read.
    """
    fresh = replace(
        identity,
        certificate_pem=_text_of(answer.certificate_pem),
        ca_certificate_pem=_text_of(answer.ca_certificate_pem) or identity.ca_certificate_pem,
        key_pem=key_pem,
    )
    _check_pair(fresh)
    return fresh


def renew_expired(identity: Identity, state: Path, timeout_s: float = ENROL_TIMEOUT_S) -> Identity:
    """Renew an expired certificate and store it; the server allows this for a limited time.

    Raises:
        NotPermittedError: if the server does not accept the identity, or no longer.
        UnreachableError: if the server did not answer.
        RefusedError: if it refuses for another reason, or sends no certificate for the new key.
    """
    key_pem = make_key()
    csr_pem = make_csr(key_pem)
    request = enrolment_pb2.RenewExpiredRequest(
        certificate_pem=identity.certificate_pem.encode(),
        csr_pem=csr_pem,
        signature=renewal_signature(identity, csr_pem),
    )
    port = EnrolmentPort(identity.enrolment_address, identity.ca_certificate_pem.encode())
    answer = port.call(
        "the expired certificate", timeout_s, lambda stub, left_s: stub.RenewExpired(request, timeout=left_s)
    )
    fresh = renewed(identity, answer, key_pem)
    store(state, fresh)
    return fresh


@dataclass(frozen=True)
class EnrolmentPort:
    """The port of a server for callers without a valid certificate; ``address`` is host:port."""

    address: str
    ca_certificate_pem: bytes

    def call(
        self, proof: str, timeout_s: float, call: Callable[[enrolment_pb2_grpc.EnrolmentServiceStub, float], T]
    ) -> T:
        """Make a call and retry it until it is answered; ``call`` gets a stub and a time limit in seconds.

        ``proof`` names the credential of the call, for messages.

        Raises:
            NotPermittedError: if the server does not accept the token or certificate.
            UnreachableError: if it did not answer.
            RefusedError: if it refuses for another reason.
        """
        credentials = grpc.ssl_channel_credentials(root_certificates=self.ca_certificate_pem)
        limits, until = Limits(), now_s() + timeout_s
        backoff = Backoff(limits.backoff_base_s, limits.backoff_cap_s)
        reason = ""
        while True:
            try:
                with grpc.secure_channel(self.address, credentials) as channel:
                    try_s = max(0.0, min(TRY_S, until - now_s()))
                    return call(enrolment_pb2_grpc.EnrolmentServiceStub(channel), try_s)
            except grpc.RpcError as error:
                code, text, detail = error_of(error)
                refusal = refusal_of(error)
                if isinstance(refusal, NotPermittedError):
                    raise NotPermittedError(f"the server refused {proof}: {text}") from None
                if refusal is not None:
                    raise RefusedError(f"the server refused {proof}: {text}", detail) from None
                if code is not grpc.StatusCode.DEADLINE_EXCEEDED or not reason:
                    reason = text  # kept if the last try has too little time for an answer
                delay = max(backoff.next_s(), retry_after_s(detail, limits))
                raw = raw_text_of(error)
                hopeless = is_untrusted(raw) or is_plaintext(raw)
                if hopeless or delay >= until - now_s():
                    raise UnreachableError(f"cannot reach the enrolment port {self.address}: {reason}") from None
                log.warning("the enrolment port failed (%s); trying again in %.1f s", text, delay)
                time.sleep(delay)


def _check_federation(known: Identity, join_token: str, path: Path) -> None:
    """Refuse a join token whose authority is not the stored identity's, which would be useless there.

    Reads the authority out of the token without ``JoinToken``, which would load cryptography (10 MB). A token that
    cannot be read is ignored, because no token is needed.
    """
    parts = "".join(join_token.split()).split(".")
    if len(parts) != _TOKEN_PARTS:
        return
    try:
        authority = fingerprint(base64.urlsafe_b64decode(parts[2] + "=" * (-len(parts[2]) % 4)))
    except ValueError:
        return
    if authority != known.authority:
        raise UsageError(
            f"{path} is the identity of {known.participant} in another federation ({known.server_address}) than the "
            "join token's; give another --state, or remove that file to enrol with the token"
        )


def _pending_key(state: Path, token_id: str) -> str:
    """The key to enrol with: the key of an earlier try with the same token, or a new one."""
    path = state / PENDING_NAME
    text = read_private(path)
    if text is not None:
        pending = json.loads(text)
        if pending["token_id"] == token_id:
            return str(pending["key_pem"])
    key_pem = make_key()
    replace_file(path, json.dumps({"token_id": token_id, "key_pem": key_pem}))
    return key_pem


def _check_pair(identity: Identity) -> None:
    public = private_key(identity.key_pem).public_key().public_numbers()
    certificate_of(identity.ca_certificate_pem)
    certified = public_key(certificate_of(identity.certificate_pem))
    if getattr(certified, "public_numbers", lambda: None)() != public:
        raise RefusedError("the server sent a certificate for another key; ask the operator for a new join token")


def _text_of(pem: bytes) -> str:
    try:
        return pem.decode("ascii")
    except UnicodeDecodeError as error:
        raise RefusedError(f"the certificate is not PEM: {error}") from None
