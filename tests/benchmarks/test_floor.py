from benchmarks.floor import CALLS, COMMITS, Floor, floor


def test_a_round_adds_up_its_parts() -> None:
    plain = floor(1000, repeats=3)
    assert min(plain.commit_s, plain.file_s, plain.call_s) > 0
    assert plain.round_s == COMMITS * plain.commit_s + 2 * (plain.file_s + CALLS * plain.call_s) + plain.file_s


def test_what_was_measured_twice_is_averaged() -> None:
    assert Floor.mean([Floor(1.0, 2.0, 3.0), Floor(3.0, 4.0, 5.0)]) == Floor(2.0, 3.0, 4.0)
