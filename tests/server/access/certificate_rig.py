import time

from atoll.server.access.certificates import CertificateBook
from atoll.server.access.issuing import CertificateIssuer
from atoll.server.access.join_tokens import JoinTokens
from atoll.server.identity import Authority, ParticipantKind
from atoll.server.stores import Store
from atoll.wire.join_token import JoinToken
from tests.server.rpc.world import Key


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


class Rig:
    """A certificate book over a real store, with a clock that the test sets."""

    def __init__(self, store: Store, authority: Authority, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.authority = authority
        self.book = CertificateBook(authority, store.writer, store.reader, clock)
        self.issuer = self.issuer_of(self.book)
        self.tokens = JoinTokens(authority, store.writer, clock)

    def issuer_of(self, book: CertificateBook, grace_s: float = 0.0) -> CertificateIssuer:
        """An issuer over a book of this store."""
        stores = self.store.writer, self.store.reader
        return CertificateIssuer(book, self.authority, *stores, self.clock, lifetime_s=3600.0, grace_s=grace_s)

    async def token(self, lifetime_s: float = 60.0) -> JoinToken:
        (made,) = await self.tokens.create(
            "acme", ParticipantKind.EDGE, lifetime_s=lifetime_s, count=1, operator="admin", address="127.0.0.1:1"
        )
        return made

    async def enrol(self) -> tuple[str, bytes]:
        token = await self.token()
        participant, pem = await self.issuer.enrol(token.token_id, token.secret, Key().csr)
        return participant.id, pem
