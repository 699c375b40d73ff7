"""``atoll aggregator start --token @FILE``."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from atoll.server.cli.aggregator import aggregator


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (None, "cannot read --token @"),
        ("", "has 0 join tokens"),
        ("one two", "has 2 join tokens"),
        ("atoll-join-1.x", "the join token was cut short"),  # the file was read
    ],
)
def test_the_token_may_lie_in_a_file(tmp_path: Path, written: str | None, said: str) -> None:
    file = tmp_path / "north.token"
    if written is not None:
        file.write_text(written + "\n")
    data = tmp_path / "north"
    result = CliRunner().invoke(aggregator, ["start", "--data", str(data), "--port", "0", "--token", f"@{file}"])
    assert result.exit_code in {1, 2}
    assert said in result.output
