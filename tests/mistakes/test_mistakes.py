"""Output after newcomers' mistakes, compared with the golden file: each message names the value and what to do.

After a change of a message: ``pytest tests/mistakes --rewrite-mistakes``, and read the difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from atoll.client import Access
from tests.mistakes.playing import printed_by
from tests.mistakes.table import MISTAKES, Mistake
from tests.system.processes import nursery
from tests.system.servers import serving

GOLDEN = Path(__file__).with_name("mistakes.md")
HEAD = """\
<!-- Written by `pytest tests/mistakes --rewrite-mistakes`; do not edit. -->
# {count} mistakes

Each is made in a new study (`atoll new study wards --framework numpy`); `tests/mistakes/table.py` has what is changed
in its files. Paths, addresses, ids, times, digests and tracebacks are replaced by names.
"""
AT_LEAST = 60

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def stands_for(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """The names in commands that stand for a running server's address, directory, port and a token that was used."""
    folder = tmp_path_factory.mktemp("mistakes")
    with nursery(folder) as processes, serving(processes, "server") as server:
        used = server.operator.tokens(1)[0]
        Access(used, folder / "used").endpoint()
        yield {"SERVER": server.address, "DATA": str(server.data), "PORT": str(server.port), "USED": used}


def entry(mistake: Mistake, code: int, text: str) -> str:
    """One mistake in the golden file."""
    return f"\n### {mistake.area}: {mistake.what}\n\n```\n$ atoll {mistake.command}\n{text}\n(exit {code})\n```\n"


def test_what_is_printed_is_what_the_golden_file_has(
    stands_for: Mapping[str, str], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    entries, unnamed = [], []
    for number, mistake in enumerate(MISTAKES):
        folder = tmp_path / str(number)
        folder.mkdir()
        code, text = printed_by(mistake, folder, stands_for)
        entries.append(entry(mistake, code, text))
        if mistake.names not in text:
            unnamed.append(mistake.what)
    page = HEAD.format(count=len(entries)) + "".join(entries)
    if pytestconfig.getoption("rewrite_mistakes"):
        GOLDEN.write_text(page, encoding="utf-8")
    assert unnamed == [], "these messages do not name the value"
    golden = GOLDEN.read_text(encoding="utf-8")
    written = golden.split("\n### ")
    changed = [one.strip() for one in page.split("\n### ") if one not in written]
    assert page == golden, "changed (--rewrite-mistakes accepts it):\n\n" + "\n\n".join(changed)


def test_there_are_enough_and_each_is_another() -> None:
    assert len(MISTAKES) >= AT_LEAST
    assert len({mistake.what for mistake in MISTAKES}) == len(MISTAKES)
    assert len({mistake.area for mistake in MISTAKES}) >= 7
