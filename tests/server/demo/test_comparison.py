from __future__ import annotations

from atoll.server.demo.comparison import page


def test_the_page_has_curves_and_facts_and_needs_nothing_else() -> None:
    text = page([0.5, 0.9], [0.4, 0.8], [5.0, 8.0], {"spent": "epsilon < 8"}, ["What that means."])
    assert "<svg" in text
    assert "epsilon &lt; 8" in text
    assert "What that means." in text
    assert "<script" not in text
    assert 'href="http' not in text.replace("http://www.w3.org/", "").replace('xlink:href="http', "")
