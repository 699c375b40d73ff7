"""Simulations keep their runs in stores, whose statements are compiled once."""

from tests.compiled_statements import statements_compiled_once, tables_compiled_once

__all__ = ["statements_compiled_once", "tables_compiled_once"]
