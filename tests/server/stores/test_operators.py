"""Roles of operators, in both databases."""

from sqlalchemy import Connection

from atoll.server.identity import OperatorRole, Peer, Role
from atoll.server.stores import Grant, Store, certificates, operators
from tests.server.stores.samples import NOW


def certify(connection: Connection, name: str, *, not_after: float = NOW + 60.0) -> None:
    peer = Peer(Role.OPERATOR, name, f"{name:0>64}", NOW, not_after, "1")
    certificates.add(connection, peer, issued_at=NOW)


def test_a_grant_takes_the_place_of_the_one_before(store: Store) -> None:
    first = Grant("dora", OperatorRole.PRIVACY_OFFICER, "admin", NOW)
    second = Grant("dora", OperatorRole.VIEWER, "eve", NOW + 1)
    for grant in (first, second):
        store.writer.submit(operators.put, grant).result()
        assert store.reader.submit(operators.get, "dora").result() == grant
    assert store.reader.submit(operators.get, "frank").result() is None
    assert store.reader.submit(operators.roles).result() == {"dora": OperatorRole.VIEWER}


def test_administrators_are_those_with_a_certificate_in_force(store: Store) -> None:
    def fill(connection: Connection) -> None:
        for name in ("zoe", "ann", "old", "gone", "never", "viewer"):
            role = OperatorRole.VIEWER if name == "viewer" else OperatorRole.ADMINISTRATOR
            operators.put(connection, Grant(name, role, "admin", NOW))
            if name != "never":
                certify(connection, name, not_after=NOW - 1.0 if name == "old" else NOW + 60.0)
        certificates.revoke_subject(connection, Role.OPERATOR, "gone", at=NOW, reason="left")

    store.writer.submit(fill).result()
    assert store.reader.submit(operators.administrators, now=NOW).result() == ("ann", "zoe")
