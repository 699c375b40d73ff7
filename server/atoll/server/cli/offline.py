"""The privacy ledger of a data directory, read without a server, for example before a restored server is started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.operator.errors import BadInputError, OperatorError, where_listed
from atoll.operator.ledger import LedgerQueries
from atoll.server.errors import InvalidRequestError, NotFoundError, ServerError
from atoll.wire.v1 import control_pb2

if TYPE_CHECKING:
    from sqlalchemy import Connection


class OfflineLedger(LedgerQueries):
    """The ledger in a database, read in one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _list_populations(self, request: control_pb2.ListPopulationsRequest) -> control_pb2.ListPopulationsResponse:
        """See ``LedgerQueries``; returns all in one page."""
        from atoll.server.privacy import ledger  # noqa: PLC0415 - these imports take seconds

        names = (request.population,) if request.population else ledger.names(self._connection)
        return control_pb2.ListPopulationsResponse(
            populations=[self._population(name, verify=request.verify) for name in names]
        )

    def _list_charges(self, request: control_pb2.ListChargesRequest) -> control_pb2.ListChargesResponse:
        """See ``LedgerQueries``."""
        from atoll.server.privacy import ledger_answers  # noqa: PLC0415 - as above

        return ledger_answers.charges_page(request, ledger_answers.read_charges(self._connection, request))

    def _get_participant_privacy(
        self, request: control_pb2.GetParticipantPrivacyRequest
    ) -> control_pb2.GetParticipantPrivacyResponse:
        """See ``LedgerQueries``."""
        from atoll.server.privacy import ledger_answers  # noqa: PLC0415 - as above

        found = ledger_answers.read_participant(self._connection, request.participant)
        spent = [self._population(name, verify=True) for name in found.populations]
        return ledger_answers.participant_privacy(found, spent)

    def newest_run(self) -> str | None:
        """See ``LedgerQueries``."""
        from atoll.server.stores import runs  # noqa: PLC0415 - as above

        return next((run.id for run in runs.listed(self._connection, project=None, limit=1)), None)

    def _named_runs(self) -> Iterator[tuple[str, str, str]]:
        """See ``LedgerQueries``."""
        from atoll.server.stores import runs  # noqa: PLC0415 - as above
        from atoll.server.stores.paging import mark  # noqa: PLC0415 - as above

        after = ""
        while page := runs.listed(self._connection, project=None, after=after):
            yield from ((run.id, run.name, run.status) for run in page)
            after = mark(page[-1].created_at, page[-1].id)

    def _population(self, name: str, *, verify: bool) -> control_pb2.PopulationSummary:
        from atoll.server.privacy import ledger_answers  # noqa: PLC0415 - as above

        return ledger_answers.population_summary(ledger_answers.read_population(self._connection, name, verify=verify))


@contextmanager
def opened(data: Path) -> Iterator[OfflineLedger]:
    """Open the ledger of a data directory read-only; a server may be running on it.

    Raises:
        BadInputError: if there is no database.
        OperatorError: if the database cannot be read, has another version, or refuses a query.
    """
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - as above

    from atoll.server.stores import database_place, dialects, schema_version  # noqa: PLC0415 - as above

    url = database_place.find(data)
    if url is None:
        raise BadInputError(f"{data} is not a server's data directory: it has no database", "name it with --data")
    engine = dialects.reader_engine(url, connections=1)
    try:
        schema_version.require_usable(engine)
        with engine.connect() as connection, connection.begin():
            yield OfflineLedger(connection)
    except SQLAlchemyError as error:
        translated = dialects.translate(error, url)
        raise OperatorError(translated.detail.message, translated.detail.remedy) from error
    except InvalidRequestError as error:
        raise BadInputError(error.detail.message, error.detail.remedy) from error
    except NotFoundError as error:
        raise OperatorError(error.detail.message, error.detail.remedy or where_listed(error.detail.code)) from error
    except ServerError as error:
        raise OperatorError(error.detail.message, error.detail.remedy) from error
    finally:
        engine.dispose()
