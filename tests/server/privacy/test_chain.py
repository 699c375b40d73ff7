import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.server.privacy import chain
from atoll.server.privacy.chain import Flaw, charge_line, first_line, limit_line, line_as_it_stands, verified
from atoll.server.privacy.events import Adjacency, Event, Sampling
from atoll.server.privacy.tally import Cost
from atoll.server.stores import Charge, Population
from atoll.server.stores.hash_chain import canonical, digest_of
from tests.properties import examples

RUN, OTHER_RUN = "rone", "rtwo"
FOLLOWS = "does not follow the line before it in its population: that one was changed, or this one"


def a_chain(count: int, name: str = "clinic") -> list[str]:
    """Lines of an export: the first line, then this many charges, alternating between two runs."""
    population = Population(name, "add_remove", 1.8e9)
    lines, previous = [first_line(population)], population.root
    for seq in range(count):
        event = Event(1.0 + seq / 10, 0.1, 1, Sampling.POISSON)
        body = Cost("rdp", Adjacency.ADD_REMOVE, 1e-5, None, seq // 2, event, 1.0).as_text()
        run = (RUN, OTHER_RUN)[seq % 2]
        bare = Charge(run, seq // 2, 0, "gaussian", body, 1.8e9 + seq, name, seq, previous)
        previous = digest_of(bare.entry)
        lines.append(charge_line(replace(bare, digest=previous)))
    return lines


def problems_of(lines: Sequence[str], **heads: str) -> list[tuple[int, str]]:
    return [(flaw.line, flaw.what) for flaw in verified(lines, heads).flaws]


def redigested(line: str, **changes: object) -> str:
    """The line, changed and with a matching digest."""
    entry = {**json.loads(line), **changes}
    del entry["digest"]
    return canonical({**entry, "digest": digest_of(entry)}) + "\n"


def head_of(lines: Sequence[str]) -> str:
    return str(json.loads(lines[-1])["digest"])


def test_what_was_exported_is_in_order() -> None:
    lines = a_chain(5)
    found = verified(lines, {"clinic": head_of(lines)})
    assert found.flaws == ()
    (tally,) = found.tallies
    assert (tally.population, tally.charges, tally.head) == ("clinic", 5, head_of(lines))
    assert {name: run.releases for name, run in tally.runs.items()} == {RUN: 3, OTHER_RUN: 2}
    assert found.adjacencies == {"clinic": "add_remove"}


def test_the_bytes_of_a_line_are_fixed() -> None:
    """Ledgers that were exported by an earlier version must stay verifiable."""
    first = (
        '{"adjacency":"add_remove","created_at":1800000000.0,'
        '"digest":"1713d22ac3563ce779331d027e395968bedaf450336598637dd37e5b3ace9b6c",'
        '"population":"clinic","unit":"participant"}\n'
    )
    charge = (
        '{"attempt":0,"charged_at":1800000000.0,"cost":{"accountant":"rdp","adjacency":"add_remove","clip":1.0,'
        '"delta":1e-05,"epsilon":null,"event":{"count":1,"noise_multiplier":1.0,"sample_rate":0.1,'
        '"sampling":"poisson"},"version":0},"digest":"bd884994faf7fac2b5d5ea86491615127a793d79c8c93f3be10bbfa1b5a57bde",'
        '"mechanism":"gaussian","population":"clinic",'
        '"previous":"1713d22ac3563ce779331d027e395968bedaf450336598637dd37e5b3ace9b6c","round":0,"run":"rone","seq":0}\n'
    )
    assert a_chain(1) == [first, charge]
    found = Charge.from_export(json.loads(charge))
    assert (found.run_id, found.seq, found.digest) == (RUN, 0, digest_of(found.entry))
    assert charge_line(found) == line_as_it_stands(found) == charge


def test_an_unreadable_charge_has_its_fields_as_text() -> None:
    charge = Charge(RUN, 3, 1, "gaussian", "{", 1.8e9, "clinic", 7, "ab", "cd")
    line = (
        '{"attempt":"1","charged_at":"1800000000.0","cost":"{","digest":"cd","mechanism":"gaussian",'
        '"population":"clinic","previous":"ab","round":"3","run":"rone","seq":"7"}\n'
    )
    assert line_as_it_stands(charge) == line
    assert line_as_it_stands(replace(charge, charged_at=cast("float", "x"), body="{}", digest=None)) == (
        line.replace("1800000000.0", "x").replace('"{"', '"{}"').replace('"cd"', '"None"')
    )


def limited(lines: Sequence[str], **changes: Any) -> str:
    """The line of a limit for these lines."""
    beside: dict[str, Any] = {
        "charges": len(lines) - 1,
        "head": head_of(lines),
        "limited_by": "officer",
        "limited_at": 1.8e9,
    }
    population = Population("clinic", "add_remove", 1.8e9)
    return limit_line(replace(population, **{"epsilon": 8.0, "delta": 1e-5, **beside, **changes}))


def test_the_limit_is_on_record() -> None:
    lines = a_chain(3)
    found = verified([*lines, limited(lines), *a_chain(1, "school")], {"clinic": head_of(lines)})
    assert found.flaws == ()
    line = found.limits["clinic"]
    assert (line.limit, line.limited_by) == ({"epsilon": 8.0, "delta": 1e-5}, "officer")
    taken = limited(lines, epsilon=None, delta=None)
    assert verified([*lines, taken]).limits["clinic"].limit is None
    assert limited(lines, limited_at=None) == ""


def test_a_limit_that_does_not_fit_is_named() -> None:
    lines = a_chain(3)
    line = limited(lines)
    beside = f"the limit line names 3 charges up to {head_of(lines)}, which are not the charges before it"
    assert problems_of([*lines[:3], line]) == [(4, beside)]
    assert problems_of([*lines, line.replace("8.0", "80.0")]) == [(5, "was changed: its digest does not fit")]
    assert problems_of([*lines, line, line]) == [(6, "the limit of population clinic is here twice")]
    assert problems_of([line]) == [(1, "population clinic has no first line before it")]
    assert problems_of([*lines, redigested(line, limited_by=5)]) == [(5, "is not a line of a ledger")]


def test_an_export_without_charges() -> None:
    lines = a_chain(0)
    assert problems_of(lines, clinic=head_of(lines)) == []
    assert problems_of([]) == []


def test_a_changed_line_is_named() -> None:
    lines = a_chain(4)
    lines[2] = lines[2].replace('"noise_multiplier":1.1', '"noise_multiplier":9.1')
    assert problems_of(lines) == [(3, "was changed: its digest does not fit")]


def test_a_changed_line_with_a_new_digest_breaks_the_next() -> None:
    lines = a_chain(4)
    lines[2] = redigested(lines[2], round=7)
    assert problems_of(lines) == [(4, FOLLOWS)]


def test_a_changed_first_line_breaks_the_first_charge() -> None:
    lines = a_chain(2)
    lines[0] = redigested(lines[0], adjacency="replace_one")
    assert problems_of(lines) == [(2, FOLLOWS)]


def test_removed_lines_are_named() -> None:
    lines = a_chain(6)
    assert problems_of([*lines[:3], *lines[4:]]) == [
        (4, "charge 2 of population clinic should come before it: removed, or out of order")
    ]
    assert problems_of([*lines[:2], *lines[5:]]) == [
        (3, "charges 1 to 3 of population clinic should come before it: removed, or out of order")
    ]
    assert problems_of(lines[1:])[0] == (1, "population clinic has no first line before it")


def test_moved_and_repeated_lines_are_named() -> None:
    lines = a_chain(5)
    lines[3], lines[4] = lines[4], lines[3]
    assert problems_of(lines) == [
        (4, "charge 2 of population clinic should come before it: removed, or out of order"),
        (5, "charge 2 of population clinic is out of its order, or here twice"),
    ]
    lines = a_chain(3)
    assert problems_of([*lines, lines[2]]) == [(5, "charge 1 of population clinic is out of its order, or here twice")]
    assert problems_of([*lines, lines[0]]) == [(5, "population clinic begins again")]


def test_a_line_cut_off_is_named() -> None:
    lines = a_chain(3)
    assert problems_of([*lines[:-1], lines[-1][:50]]) == [(4, "is cut off")]
    assert problems_of([*lines[:-1], lines[-1][:-1]]) == [(4, "is cut off")]


def test_a_shortened_chain_does_not_match_its_head() -> None:
    lines = a_chain(4)
    head = head_of(lines)
    assert problems_of(lines[:-1]) == []
    ((line, what),) = problems_of(lines[:-1], clinic=head)
    assert line == 0
    assert f"not with {head}: the last charges are missing or replaced" in what
    ((_, beyond),) = problems_of(lines, clinic=head_of(lines[:-1]))
    assert "charges follow the one noted" in beyond
    assert problems_of(lines, school=head) == [(0, "no charge of population school is here")]


def test_a_rewritten_history_does_not_match_the_head() -> None:
    lines = a_chain(4)
    forged = [lines[0]]
    for line in lines[1:]:
        before = json.loads(forged[-1])["digest"]
        forged.append(redigested(line, previous=before, charged_at=1.9e9))
    assert problems_of(forged) == []
    assert len(problems_of(forged, clinic=head_of(lines))) == 1


def test_spaces_are_a_change() -> None:
    lines = a_chain(1)
    lines[1] = json.dumps(json.loads(lines[1])) + "\n"
    assert problems_of(lines) == [(2, "was changed: it is not written as it was exported")]


@pytest.mark.parametrize(
    "line",
    ["{}", "[]", "1", "null", "", "{", '{"seq":1}', '{"population":1,"digest":"x"}', "NaN", "[" * 5000, '{"seq":NaN}'],
)
def test_other_text_is_no_line(line: str) -> None:
    assert problems_of([line + "\n"]) == [(1, "is not a line of a ledger")]


def test_a_charge_that_says_no_cost() -> None:
    lines = a_chain(1)
    lines[1] = redigested(lines[1], cost={"free": True})
    assert problems_of(lines) == [(2, "charge 0 does not say what it cost")]


def test_flaws_are_bounded() -> None:
    found = verified("x\n" for _ in range(10_000_000)).flaws
    assert len(found) == chain.MAX_FLAWS
    assert found[-1] == Flaw(chain.MAX_FLAWS, "is not a line of a ledger")


def test_populations_may_follow_one_another_in_one_file() -> None:
    lines = [*a_chain(3), *a_chain(2, "school")]
    assert problems_of(lines) == []
    assert [tally.charges for tally in verified(lines).tallies] == [3, 2]


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_no_edit_goes_unnoticed(data: st.DataObject) -> None:
    """If any byte is changed, or any line removed, copied or moved, a flaw is found, given the head."""
    lines = a_chain(data.draw(st.integers(1, 6)))
    heads, edited = {"clinic": head_of(lines)}, list(lines)
    at = data.draw(st.integers(0, len(lines) - 1))
    match data.draw(st.sampled_from(["byte", "remove", "copy", "move"])):
        case "byte":
            place = data.draw(st.integers(0, len(lines[at]) - 1))
            char = data.draw(st.characters(min_codepoint=1, max_codepoint=126))
            edited[at] = lines[at][:place] + char + lines[at][place + 1 :]
        case "remove":
            del edited[at]
        case "copy":
            edited.insert(data.draw(st.integers(0, len(lines))), lines[at])
        case _:
            edited.insert(data.draw(st.integers(0, len(lines) - 1)), edited.pop(at))
    if edited != lines:
        assert verified(edited, heads).flaws
