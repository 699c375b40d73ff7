from atoll.server.runs.leases import Leases


def test_a_lease_ends_by_itself_or_when_its_owner_holds_others() -> None:
    leases = Leases()
    leases.hold("upload", "a", until=100.0)
    leases.hold("run", "b")
    assert leases.held(99.0) == {"a", "b"}
    assert leases.held(100.0) == {"b"}
    leases.hold_only("run", ["c"])
    assert leases.held(0.0) == {"c"}


def test_a_blob_with_two_holders_is_held_until_both_release_it() -> None:
    leases = Leases()
    leases.hold_only("one", ["a"])
    leases.hold_only("two", ["a"])
    leases.hold_only("one", [])
    assert leases.held(0.0) == {"a"}
    leases.hold_only("two", [])
    assert leases.held(0.0) == frozenset()
