"""The privacy ledger: what each population and run has spent, and the limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from atoll.console.guard import session_of
from atoll.console.templating import page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from atoll.console.reading import Reader

MAX_CHARGES = 100
"""Maximum number of charges on a page: the newest ones."""


class LedgerPages:
    """Pages of the ledger. They are not live: a long ledger takes the server seconds to verify and add up."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def populations(self, request: Request) -> Response:
        """The page of the privacy that each population has spent."""
        return self._page(request, "populations.html.j2", populations=self._reader.operator.populations())

    def population(self, request: Request) -> Response:
        """One population: its limit and its runs."""
        found = self._reader.operator.population(request.path_params["population"])
        return self._page(request, "population.html.j2", found=found)

    def run(self, request: Request) -> Response:
        """The page of the privacy that a run has spent, release by release."""
        operator = self._reader.operator
        run = operator.run(request.path_params["run"])
        charges = operator.newest_charges(run=run.id, limit=MAX_CHARGES)
        if not charges.population:
            raise HTTPException(404, f"run {run.id} releases its models without privacy")
        population = operator.population(charges.population)
        spending = next((one for one in population.runs if one.run == run.id), None)
        values = {"run": run.summary(), "population": population, "spending": spending, "charges": charges.charges}
        return self._page(request, "run_privacy.html.j2", **values)

    def _page(self, request: Request, name: str, **values: object) -> Response:
        return page(
            name, {**self._reader.common(), **values}, address=self._reader.address, session=session_of(request)
        )
