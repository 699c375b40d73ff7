"""How to install a missing part of Atoll: the one wording for hints, errors and pages."""

from __future__ import annotations


def install_line(extras: str = "") -> str:
    """The command that installs an extra, or several (separated by commas), from a checkout.

    It never installs by name: Atoll is on no package index, so a package of that name would be another one.
    """
    return f'pip install -c constraints.txt -e ".[{extras}]"' if extras else "pip install -c constraints.txt -e ."


def install_hint(extras: str = "") -> str:
    """``install_line``, with the place to run it in."""
    return f"{install_line(extras)} in a checkout of Atoll"
