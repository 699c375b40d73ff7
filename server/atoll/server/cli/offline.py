"""The privacy ledger of a data directory, read without a server: before one is started on what was restored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from atoll.server import control
from atoll.server.cli.errors import BadInputError, CommandError, where_listed
from atoll.server.errors import InvalidRequestError, NotFoundError, ServerError

if TYPE_CHECKING:
    from sqlalchemy import Connection


class LedgerSource(Protocol):
    """Who answers for the ledger: a server, or a data directory."""

    def populations(self, *, verify: bool = False) -> tuple[control.PopulationSpending, ...]:
        """Of each population."""
        ...

    def population(self, name: str, *, verify: bool = False) -> control.PopulationSpending:
        """Of one."""
        ...

    def charges(self, population: str, *, start: int = 0) -> control.Charges:
        """A page of a population's charges."""
        ...

    def newest_charges(self, *, population: str = "", run: str = "", limit: int) -> control.Charges:
        """The last ones of a population, or of a run with its epsilon after each."""
        ...

    def participant_privacy(self, participant: str) -> control.ParticipantPrivacy:
        """What holds for one participant."""
        ...

    def newest_run(self) -> str | None:
        """The id of the newest run; None before the first."""
        ...


class OfflineLedger:
    """See ``LedgerSource``; all of one moment."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def populations(self, *, verify: bool = False) -> tuple[control.PopulationSpending, ...]:
        """See ``LedgerSource``."""
        from atoll.server.privacy import ledger  # noqa: PLC0415 - SQLAlchemy, accountants: seconds that others save

        return tuple(self.population(name, verify=verify) for name in ledger.names(self._connection))

    def population(self, name: str, *, verify: bool = False) -> control.PopulationSpending:
        """See ``LedgerSource``."""
        from atoll.server.rpc import ledger_answers as answers  # noqa: PLC0415 - as above

        found = answers.read_population(self._connection, name, verify=verify)
        return control.population_of(answers.told_population(found))

    def charges(self, population: str, *, start: int = 0) -> control.Charges:
        """See ``LedgerSource``."""
        return self._charges(population=population, start=start)

    def newest_charges(self, *, population: str = "", run: str = "", limit: int) -> control.Charges:
        """See ``LedgerSource``."""
        return self._charges(population=population, run=run, limit=limit, newest=True)

    def participant_privacy(self, participant: str) -> control.ParticipantPrivacy:
        """See ``LedgerSource``."""
        from atoll.server.rpc import ledger_answers as answers  # noqa: PLC0415 - as above

        found = answers.read_parts(self._connection, participant)
        standing = [answers.read_population(self._connection, name, verify=True) for name in found.populations]
        return control.participant_privacy_of(answers.told_parts(found, list(map(answers.told_population, standing))))

    def newest_run(self) -> str | None:
        """See ``LedgerSource``."""
        from atoll.server.stores import runs  # noqa: PLC0415 - as above

        return next((run.id for run in runs.listed(self._connection, limit=1)), None)

    def _charges(
        self, *, population: str, run: str = "", start: int = 0, limit: int = 0, newest: bool = False
    ) -> control.Charges:
        from atoll.server.rpc import ledger_answers as answers  # noqa: PLC0415 - as above
        from atoll.wire.v1 import control_pb2  # noqa: PLC0415 - as above

        request = control_pb2.ListChargesRequest(
            population=population, run=run, start=start, limit=limit, newest=newest, epsilon=bool(run)
        )
        return control.charges_of(answers.told_charges(request, answers.read_charges(self._connection, request)))


@contextmanager
def opened(data: Path) -> Iterator[OfflineLedger]:
    """The ledger of a data directory, whether a server runs on it or not; nothing in it is changed.

    Raises:
        BadInputError: if there is no database.
        CommandError: if it cannot be read, or is of another version; whatever the server would have answered.
    """
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - as above

    from atoll.server.stores import dialects, schema_version  # noqa: PLC0415 - as above
    from atoll.server.stores.store import DATABASE_FILE  # noqa: PLC0415 - as above

    path = data / DATABASE_FILE
    if not path.exists():
        raise BadInputError(f"{data} is no server's data directory: it has no {DATABASE_FILE}", "name it with --data")
    url = dialects.sqlite_url(path)
    engine = dialects.reader_engine(url, connections=1)
    try:
        schema_version.require_current(engine)
        with engine.connect() as connection, connection.begin():
            yield OfflineLedger(connection)
    except SQLAlchemyError as error:
        translated = dialects.translate(error, url)
        raise CommandError(translated.detail.message, translated.detail.remedy) from error
    except InvalidRequestError as error:
        raise BadInputError(error.detail.message, error.detail.remedy) from error
    except NotFoundError as error:
        raise CommandError(error.detail.message, error.detail.remedy or where_listed(error.detail.code)) from error
    except ServerError as error:
        raise CommandError(error.detail.message, error.detail.remedy) from error
    finally:
        engine.dispose()
