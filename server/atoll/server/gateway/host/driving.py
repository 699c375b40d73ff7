"""The coordinator's interface for gateways."""

from __future__ import annotations

from typing import Protocol

from atoll.server.ingest.coordinator_api import CoordinatorApi
from atoll.server.rpc.check_in_api import CheckInApi


class Driving(CoordinatorApi, CheckInApi, Protocol):
    """The coordinator's interface here: answers nodes and participants, and knows the runs."""

    def run_names(self) -> list[str]:
        """Ids of the runs that have not ended.

        Raises:
            UnavailableError: until all runs are resumed.
        """
        ...
