"""The pictures of the table show the table."""

import re

from atoll.server.rounds import TABLE, Situation, state_diagram


def test_the_diagram_has_every_arrow_of_the_table_and_no_other() -> None:
    drawn = set(re.findall(r"^ {4}(\w+) --> (\w+): ", state_diagram(), re.MULTILINE))
    arrows = {(str(here), str(there)) for (here, _), move in TABLE.items() for there in move.to if here is not there}
    assert drawn == {(here, there) for here, there in arrows if here != Situation.PAST}


def test_the_main_road_reads_as_in_the_design() -> None:
    for arrow in (
        "new --> created: started",
        "created --> sampled: cohort_drawn",
        "sampled --> open: round_prepared",
        "closing --> aggregated: aggregated",
        "aggregated --> charged: charged",
        "charged --> created: published",
        "abandoned --> created: retry_due",
        "paused --> created: resume_requested",
    ):
        assert f"    {arrow}\n" in state_diagram()
