"""How to install a missing part of Atoll: the wording shared by hints, errors and pages."""

from __future__ import annotations


def install_line(extras: str = "") -> str:
    """The command that installs an extra, or several (separated by commas), from a checkout.

    It never installs by name: Atoll is not on any package index, so a package of that name would be another project.
    """
    return f'pip install -c constraints.txt -e ".[{extras}]"' if extras else "pip install -c constraints.txt -e ."


def install_hint(extras: str = "") -> str:
    """``install_line``, with the folder in which to run it."""
    return f"{install_line(extras)} in a checkout of Atoll"
