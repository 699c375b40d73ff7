"""The ``atoll`` command: sub-commands of all installed packages, loaded when called; errors are one line.

Exit codes: 0 ok, 1 the operation failed, 2 usage or bad input, 3 the server cannot be reached, 4 not permitted (token
or certificate), 5 the run ended failed or cancelled, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points, version
from typing import TYPE_CHECKING, cast

import click

from atoll.text.installing import install_hint
from atoll.text.printable import printable
from atoll.wire.errors import WireError

if TYPE_CHECKING:
    import grpc

GROUP = "atoll.commands"
EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_NOT_PERMITTED, EXIT_INTERRUPTED = 1, 2, 3, 4, 130
_BY_STATUS = {
    "UNAVAILABLE": EXIT_UNREACHABLE,
    "DEADLINE_EXCEEDED": EXIT_UNREACHABLE,
    "UNAUTHENTICATED": EXIT_NOT_PERMITTED,
    "PERMISSION_DENIED": EXIT_NOT_PERMITTED,
    "INVALID_ARGUMENT": EXIT_USAGE,
    "NOT_FOUND": EXIT_USAGE,
}
_EXTRAS = {"atoll.console": "console", "atoll.server": "server", "atoll.datacenter": "silo"}
_EPILOG = (
    "Shell completion: add the output of `_ATOLL_COMPLETE=bash_source atoll` (or zsh_source, fish_source) to your "
    "shell's start-up file. Exit codes: 0 ok, 1 failed, 2 usage, 3 server out of reach, 4 not permitted, 5 the run "
    "failed or was cancelled, 130 interrupted."
)


class Rooms(click.Group):
    """A group whose commands are the entry points of ``atoll.commands``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, without loading a command."""
        del ctx
        return sorted({point.name for point in entry_points(group=GROUP)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command; if its extra is not installed, a command that prints how to install it."""
        del ctx
        point = next(iter(entry_points(group=GROUP, name=cmd_name)), None)
        if point is None:
            return None
        try:
            command = point.load()
        except ModuleNotFoundError as error:
            return _unavailable(point, error)
        if not isinstance(command, click.Command):
            raise click.ClickException(f"{point.value}, the command {cmd_name!r}, is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As in click, with a suggestion for a mistyped name; click only suggests loaded commands."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if close and not args[0].startswith("-"):
                raise click.UsageError(f"No such command {args[0]!r}. Did you mean {close[0]!r}?", ctx) from error
            raise


@click.group(cls=Rooms, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("atoll"), prog_name="atoll")
def atoll() -> None:
    """Federated learning: train one model over data that must stay where it is."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # by default gRPC's C core logs every GOAWAY to stderr
    sys.exit(run_cli(arguments))


def run_cli(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit code. Atoll's own errors become one line on stderr."""
    try:
        result = atoll.main(args=arguments, prog_name="atoll", standalone_mode=False)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code_of(error)
        if code is None:
            raise
        click.echo(f"atoll: {printable(_text_of(error), lines=True)}", err=True)
        return code
    return result if isinstance(result, int) else 0


def exit_code_of(error: BaseException) -> int | None:
    """The documented exit code of an error, by default its ``exit_code``; None for a bug."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, WireError):
        return EXIT_USAGE
    own = getattr(error, "exit_code", None)
    if isinstance(own, int):
        return own
    call = _as_call(error)
    return None if call is None else _BY_STATUS.get(call.code().name, EXIT_FAILED)


def _text_of(error: BaseException) -> str:
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return "interrupted"
    if _as_call(error) is None:
        return str(error)
    from atoll.client._connection.refusals import error_of  # noqa: PLC0415  # gRPC is loaded already: it raised this

    return error_of(cast("grpc.RpcError", error))[1]


def _as_call(error: BaseException) -> grpc.Call | None:
    """The error as a failed gRPC call, or None; does not load gRPC."""
    grpc_module = sys.modules.get("grpc")
    if grpc_module is None or not isinstance(error, grpc_module.RpcError) or not hasattr(error, "code"):
        return None
    return cast("grpc.Call", error)


def _unavailable(point: EntryPoint, error: ModuleNotFoundError) -> click.Command:
    room = ".".join(point.value.split(":")[0].split(".")[:2])
    extra = _EXTRAS.get(room, "")
    hint = install_hint(extra)

    @click.command(
        point.name,
        help=f"Not installed: {hint}",
        short_help=f"Not installed: needs the extra {extra}." if extra else "Not installed.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    )
    def command() -> None:
        raise click.UsageError(f"`atoll {point.name}` needs {error.name!r}, which is not installed: {hint}")

    return command
