"""Standbys as gateways: they act for every participant, and other nodes take over the work of a lost standby."""

from __future__ import annotations

from typing import cast

from atoll.server.gateway.host.bindings import Bindings
from atoll.server.gateway.host.bound_coordinator import BoundCoordinator
from atoll.server.gateway.host.driving import Driving
from atoll.server.gateway.host.gateways import Gateway
from atoll.server.identity import Role
from atoll.server.ingest.coordinator_api import Caller, Commit, Disposition, ReportReceipt
from atoll.wire.v1 import transfer_pb2
from tests.server.ingest.test_gateway_nodes import FOLD, ITEM, KEY, Node, Rig

STANDBY = Gateway.of(Caller(Role.SERVER, "s" + "a" * 12))
NORTH = Gateway.of(Caller(Role.AGGREGATOR, "p" + "a" * 12))


class Coordinator:
    """Knows an operator's certificate, and records the calls and their callers."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    async def identify(self, certificate_pem: bytes) -> Caller:
        return Caller(Role.OPERATOR, certificate_pem.decode())

    async def grant_download(self, caller: Caller, blob: str) -> None:
        self.asked.append((caller, blob))

    async def commit(self, commit: Commit) -> ReportReceipt:
        self.asked.append(commit.node)
        return ReportReceipt(Disposition.COUNTED, commit.report.digest)


def test_its_names_are_no_aggregators() -> None:
    assert (STANDBY.node, NORTH.node) == ("standby-" + STANDBY.id, "gateway-" + NORTH.id)
    assert (STANDBY.through, NORTH.through) == ("", NORTH.id)
    assert str(STANDBY) == f"standby {STANDBY.id}"


async def test_it_speaks_for_every_caller_and_no_binding_is_looked_up() -> None:
    coordinator = Coordinator()
    trusted = BoundCoordinator(cast("Driving", coordinator), cast("Bindings", None), STANDBY)
    operator = await trusted.identify(b"admin")
    await trusted.grant_download(operator, "model")
    await trusted.commit(Commit("p1", transfer_pb2.ReportRequest(), "main"))
    assert operator.role is Role.OPERATOR
    assert coordinator.asked == [(operator, "model"), STANDBY.node]


async def test_its_work_goes_to_another_node_at_once_when_it_is_gone() -> None:
    rig, standby = Rig(), Node(STANDBY.node)
    rig.pool.add_gateway(standby)
    await rig.pool.fold(KEY, STANDBY.node, [ITEM])
    await rig.pool.drop_uploads("r1", (2, 0), {(1, 0, "p1")})
    assert await rig.pool.gateways.flaw(STANDBY.node, ITEM) is None  # others read its uploads: they look themselves
    rig.pool.remove_gateway(standby)
    await rig.pool.fold(KEY, STANDBY.node, [ITEM])
    async with rig.pool.partials(KEY, [(STANDBY.node, ITEM)]) as (partial,):
        assert partial.size == KEY.elements
    assert standby.asked == [FOLD, ("r1", (2, 0), {(1, 0, "p1")})]
    assert rig.main.asked == [FOLD, ("partial", "r1", 1)]
