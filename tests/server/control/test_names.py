import pytest

from atoll.server.control.names import shown_names


@pytest.mark.parametrize(
    ("organisations", "names"),
    [
        ({"pa": "north", "pb": "south"}, {"pa": "north", "pb": "south"}),
        ({"pa": "north", "pb": "north", "pc": "south"}, {"pa": "north/pa", "pb": "north/pb", "pc": "south"}),
        ({"pa": "acme", "pb": "acme"}, {"pa": "pa", "pb": "pb"}),
        ({"pa": "acme"}, {"pa": "acme"}),
        ({"pa": "default", "pb": "north"}, {"pa": "pa", "pb": "north"}),
        ({"pa": "", "pb": ""}, {"pa": "pa", "pb": "pb"}),
    ],
)
def test_a_name_is_as_short_as_can_be(organisations: dict[str, str], names: dict[str, str]) -> None:
    assert shown_names(organisations) == names


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (
            {"pa": {"site": "ward-7"}, "pb": {"site": "ward-8"}},
            {"pa": "site=ward-7", "pb": "site=ward-8", "pc": "south"},
        ),
        ({"pa": {"site": "ward-7"}, "pb": {"site": "ward-7"}}, {"pa": "north/pa", "pb": "north/pb", "pc": "south"}),
        ({"pa": {"kind": "x", "site": "w"}, "pb": {"kind": "x"}}, {"pa": "site=w", "pb": "north/pb", "pc": "south"}),
        ({"pc": {"site": "ward-9"}}, {"pa": "north/pa", "pb": "north/pb", "pc": "south"}),
    ],
)
def test_a_label_of_its_own_names_a_participant_whose_organisation_does_not(
    labels: dict[str, dict[str, str]], names: dict[str, str]
) -> None:
    assert shown_names({"pa": "north", "pb": "north", "pc": "south"}, labels) == names
