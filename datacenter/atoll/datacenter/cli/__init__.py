"""``atoll silo``: each command is a module, loaded when it is called."""

from __future__ import annotations

from importlib import import_module

import click

_COMMANDS: dict[str, str] = {
    "bench": "atoll.datacenter.cli.bench:bench",
    "demo": "atoll.datacenter.cli.demo:demo",
    "enrol": "atoll.datacenter.cli.enrol:enrol",
    "export": "atoll.datacenter.cli.export:export",
    "initial": "atoll.datacenter.cli.initial:initial",
    "join": "atoll.datacenter.cli.join:join",
    "plan": "atoll.datacenter.cli.plan:plan",
    "scaling": "atoll.datacenter.cli.scaling:scaling",
    "train": "atoll.datacenter.cli.train:train",
    "tokens": "atoll.datacenter.cli.tokens:tokens",
}
"""Command to ``module:function``."""


class Commands(click.Group):
    """A group that loads a command only when it is used, because most commands load PyTorch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, without loading anything."""
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command."""
        del ctx
        if (place := _COMMANDS.get(cmd_name)) is None:
            return None
        module, _, name = place.partition(":")
        command = getattr(import_module(module), name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{place} is not a click command")
        return command


@click.group(cls=Commands)
def silo() -> None:
    """Train one silo's job on many GPUs."""
