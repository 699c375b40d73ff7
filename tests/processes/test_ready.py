"""The line that a child process prints once it is ready."""

from __future__ import annotations

import os

from atoll.processes import read_line


def test_a_line_comes_in_pieces_or_not_at_all() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"ab")
    assert read_line(reading, 0.05) == b""
    os.write(writing, b"cd\n")
    assert read_line(reading, 5.0) == b"cd\n"
    os.write(writing, b"cut")
    os.close(writing)
    assert read_line(reading, 5.0) == b""
    os.close(reading)
