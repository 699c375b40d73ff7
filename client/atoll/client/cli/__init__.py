"""The command line ``atoll``."""

from atoll.client.cli.main import main

__all__ = ["main"]
