"""Tells which options were given."""

from __future__ import annotations

import click
from click.core import ParameterSource


def is_given(name: str) -> bool:
    """Whether an option of the running command was given on the command line or in the environment."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not None and source is not ParameterSource.DEFAULT
