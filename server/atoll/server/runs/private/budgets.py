"""What the rounds under way of all private runs may spend."""

from __future__ import annotations

from atoll.server.privacy import ledger
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.errors import UncomparedError
from atoll.server.privacy.events import Event
from atoll.server.privacy.reservations import Reservations
from atoll.server.rounds import Phase, RunState, RunStatus
from atoll.server.runs.services import Services


class Budgets:
    """Reserves the cost of every round under way in the budget of its population."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reservations = Reservations()
        self._versions: dict[str, int] = {}  # run → the release that it has reserved for
        self._uncompared: dict[str, str] = {}  # run → when its ledger was restored

    def hold_back(self, run: str, restored: str) -> None:
        """Nothing of the run is released until ``let_go``: its ledger may lack charges since it was ``restored``."""
        self._uncompared[run] = restored

    def let_go(self, run: str) -> None:
        """Somebody has compared the ledger."""
        self._uncompared.pop(run, None)

    def require_compared(self, run: str) -> None:
        """Raise if the run is held back.

        Raises:
            UncomparedError: saying since when, and what to do.
        """
        if run in self._uncompared:
            raise UncomparedError(run, self._uncompared[run])

    async def reserve(self, run: str, contract: Contract, version: int, *, afresh: bool = False) -> None:
        """Reserve what a round will cost, or see that there is not so much left; ``afresh`` as ``ledger.check``.

        Raises:
            BudgetSpentError: naming what is spent, what the round would make it, and the limit.
        """
        self.require_compared(run)
        others = self.hold(run, contract, version)
        try:
            await self._services.reader.run(ledger.check, contract, run, version, reserved=others, afresh=afresh)
        except BaseException:
            self.release(run)
            raise

    def hold(self, run: str, contract: Contract, version: int) -> tuple[Event, ...]:
        """Reserve what a round will cost, whether there is so much left or not; what others have reserved."""
        self._versions[run] = version
        return self._reservations.hold(contract.population, run, contract.cost(version))

    def release(self, run: str) -> None:
        """The run has no round under way."""
        self._versions.pop(run, None)
        self._reservations.release(run)

    def follow(self, state: RunState) -> None:
        """Give back what the run has reserved once that is charged, for it must not count twice, or waits."""
        live = state.round
        waits = live is None or live.phase in (Phase.CHARGED, Phase.ABANDONED)
        if waits or state.status is not RunStatus.RUNNING or self._versions.get(state.run_id) != state.version:
            self.release(state.run_id)
