"""Ends operators' commands with an error: one line, the remedy on the next, and the error's exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from atoll.operator.errors import BadInputError, OperatorError
from atoll.server.errors import InvalidRequestError, ServerError


class StoppedError(OperatorError):
    """Interrupted by the user."""

    exit_code = 130


class Command(click.Command):
    """A command that shows errors of type ``OperatorError``."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except OperatorError as error:
            click.ClickException(str(error)).show()
            ctx.exit(error.exit_code)


class Group(click.Group):
    """A group of commands that show errors of type ``OperatorError``."""

    command_class = Command


@contextmanager
def local_errors() -> Iterator[None]:
    """Convert an error of the server's modules, called in this process, to an ``OperatorError``."""
    try:
        yield
    except InvalidRequestError as error:
        raise BadInputError(error.detail.message, error.detail.remedy) from error
    except ServerError as error:
        raise OperatorError(str(error), error.detail.remedy) from error


@contextmanager
def writing(path: object) -> Iterator[None]:
    """Convert a failure to write the file ``path`` to a ``BadInputError``."""
    try:
        yield
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror or error}") from error
