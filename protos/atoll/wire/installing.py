"""How a part of Atoll is installed that is not there. Every hint and page says it in these words."""

from __future__ import annotations


def install_line(extras: str = "") -> str:
    """The command for an extra, or several with commas between; to be run in a checkout.

    Never by name: Atoll is on no package index, and a package that had its name there would be somebody else's.
    """
    return f'pip install -c constraints.txt -e ".[{extras}]"' if extras else "pip install -c constraints.txt -e ."


def install_hint(extras: str = "") -> str:
    """``install_line``, and where."""
    return f"{install_line(extras)} in a checkout of Atoll"
