"""Reservations of privacy budget for the live rounds of all private runs."""

from __future__ import annotations

from atoll.server.privacy import ledger
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.errors import UncomparedError
from atoll.server.privacy.events import Event
from atoll.server.privacy.reservations import Reservations
from atoll.server.rounds import Phase, RunState, RunStatus
from atoll.server.runs.services import Services


class Budgets:
    """Reserves the cost of each live round in the budget of its population."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reservations = Reservations()
        self._versions: dict[str, int] = {}  # run → its reserved release
        self._uncompared: dict[str, str] = {}  # run → epoch second at which its ledger was restored

    def block(self, run: str, restored: str) -> None:
        """Block releases of the run until ``unblock``: its ledger was ``restored`` and may lack later charges."""
        self._uncompared[run] = restored

    def unblock(self, run: str) -> None:
        """Allow releases again, after an operator has compared the ledger."""
        self._uncompared.pop(run, None)

    def require_compared(self, run: str) -> None:
        """Check that the run is not blocked.

        Raises:
            UncomparedError: if it is.
        """
        if run in self._uncompared:
            raise UncomparedError(run, self._uncompared[run])

    async def reserve(self, run: str, contract: Contract, version: int, *, afresh: bool = False) -> None:
        """Reserve the cost of a round if the budget covers it; ``afresh`` as in ``ledger.check``.

        Raises:
            BudgetSpentError: if the budget does not cover it; has the spent budget, the round's cost and the limit.
        """
        self.require_compared(run)
        others = self.hold(run, contract, version)
        try:
            await self._services.reader.run(ledger.check, contract, run, version, reserved=others, afresh=afresh)
        except BaseException:
            self.release(run)
            raise

    def hold(self, run: str, contract: Contract, version: int) -> tuple[Event, ...]:
        """Reserve the cost of a round without a check; returns what other runs have reserved."""
        self._versions[run] = version
        return self._reservations.hold(contract.population, run, contract.cost(version))

    def release(self, run: str) -> None:
        """Release the run's reservation: it has no live round."""
        self._versions.pop(run, None)
        self._reservations.release(run)

    def follow(self, state: RunState) -> None:
        """Release a reservation when it has been charged, so that it does not count twice, or when its run waits."""
        live = state.round
        waits = live is None or live.phase in (Phase.CHARGED, Phase.ABANDONED)
        if waits or state.status is not RunStatus.RUNNING or self._versions.get(state.run_id) != state.version:
            self.release(state.run_id)
