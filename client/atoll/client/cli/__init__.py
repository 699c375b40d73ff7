"""The command line ``atoll``."""

from atoll.client.cli.app import main

__all__ = ["main"]
