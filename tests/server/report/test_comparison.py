from __future__ import annotations

import re
from dataclasses import replace

import pytest

from atoll.server.control.comparing import ComparedRun, compared_metrics
from atoll.server.report.comparison import comparison_plot, render_comparison
from tests.server.report.test_render import a_round, parsed

pytestmark = pytest.mark.slow

RUN = ComparedRun(
    variant="lr <1>",
    run="r1",
    status="finished",
    reason="",
    model="ab" * 32,
    rounds=(a_round(0), a_round(1)),
    job_seed=7,
    seconds=3.0,
    sent_bytes=2_000_000,
)


def test_the_page_needs_nothing_from_elsewhere_and_its_ids_are_unique() -> None:
    page = render_comparison(
        [RUN, replace(RUN, run="r2"), replace(RUN, variant="b", epsilon=0.12345, delta=1e-5)], now=1.0
    )
    links = parsed(page)
    assert all(target.startswith("#") for target in links.targets)
    assert not {"script", "link", "img", "iframe", "object"} & set(links.tags)
    assert len(links.ids) == len(set(links.ids))
    assert not re.findall(r"#0000[0-9a-f]{2}\b", page), "a colour that stands in for one of the page's was left"
    assert len(page) < 200_000


def test_repeats_have_a_band_means_and_deviations() -> None:
    higher = replace(RUN, run="r2", rounds=tuple(replace(one, metrics={"server/accuracy": 0.9}) for one in RUN.rounds))
    page = render_comparison([RUN, higher], now=1.0)
    assert "0.75 ± 0.2121" in page
    assert "1 variant, 2 runs" in page
    assert "fill-opacity" in page
    assert "fill-opacity" not in render_comparison([RUN], now=1.0)


def test_names_are_escaped_and_a_failure_says_why() -> None:
    failed = replace(
        RUN, variant="b", run="r2", status="failed", reason="no <quorum>", model="", rounds=(), seconds=None
    )
    page = render_comparison([RUN, failed], now=1.0)
    assert "lr &lt;1&gt;" in page
    assert "<1>" not in page
    assert "failed: no &lt;quorum&gt;" in page
    assert "0 finished" in page


def test_a_name_that_begins_with_an_underscore_is_in_the_legend() -> None:
    runs = [replace(RUN, variant="_odd"), replace(RUN, variant="even")]
    (axes,) = comparison_plot(runs, compared_metrics(runs)[:1]).axes
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["_odd", "even"]
    assert "_odd" in _svg_texts(render_comparison(runs, now=1.0))


def _svg_texts(page: str) -> list[str]:
    return [text.strip() for text in re.findall(r"<text[^>]*>([^<]*)</text>", page)]


def test_columns_of_what_no_run_has_are_left_out() -> None:
    page = render_comparison([RUN], now=1.0)
    assert "virtual time" not in page
    assert "epsilon" not in page
    private = render_comparison([replace(RUN, epsilon=0.12345, delta=1e-5, virtual_s=60.0)], now=1.0)
    assert "0.1235 at 1e-05" in private
    assert "virtual time" in private


def test_more_variants_than_colours_have_other_lines() -> None:
    page = render_comparison([replace(RUN, variant=f"v{place}") for place in range(10)], now=1.0)
    assert page.count("stroke-dasharray") >= 2


def test_keys_that_names_leave_out_are_in_a_table() -> None:
    settings: list[dict[str, object]] = [{"optimiser.lr": 0.25, "optimiser.name": "fedavg"}, {"optimiser.lr": 0.5}]
    runs = [replace(RUN, variant=f"digits ({place})", settings=one) for place, one in enumerate(settings)]
    assert '<th class="n">optimiser.lr</th>' in render_comparison(runs, now=1.0)
    named = [replace(RUN, variant=f"optimiser.lr = {one}", settings={"optimiser.lr": one}) for one in (0.25, 0.5)]
    assert "What their jobs differ in" not in render_comparison(named, now=1.0)
