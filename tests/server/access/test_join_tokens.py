import pytest

from atoll.server.identity import (
    ParticipantKind,
    RevokedError,
)
from atoll.server.stores import certificates, tokens
from tests.server.access.certificate_rig import Rig


async def test_a_token_created_while_its_operator_is_revoked_is_refused(rig: Rig) -> None:
    """Its call was admitted earlier; its tokens would be recorded after its other tokens were voided."""
    dora = rig.authority.issue_operator("dora", now=rig.clock()).issued
    await rig.store.writer.run(certificates.add, dora.peer, issued_at=rig.clock())
    made = rig.tokens.create(
        "acme", ParticipantKind.EDGE, lifetime_s=60.0, count=1, operator="dora", address="127.0.0.1:1"
    )
    await rig.book.revoke_operator("dora", "left")
    with pytest.raises(RevokedError, match="dora was revoked: left"):
        await made
    assert await rig.store.reader.run(tokens.listed, project=None) == ()
