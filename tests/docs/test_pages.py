"""Documents that are generated from the code are up to date."""

import re
from pathlib import Path

from atoll.server.rounds.diagram import state_diagram

ROOT = Path(__file__).parents[2]


def test_the_state_diagram_is_the_transition_table() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert state_diagram().strip() in text


def test_every_path_that_the_documents_link_to_exists() -> None:
    for page in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_shows_the_numpy_client_word_for_word() -> None:
    client = (ROOT / "examples" / "numpy_client.py").read_text().rstrip()
    assert f"```python\n{client}\n```" in (ROOT / "README.md").read_text()
