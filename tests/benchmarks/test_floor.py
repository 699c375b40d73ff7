from benchmarks.floor import CALLS, COMMITS, FILES, floor


def test_a_round_adds_up_its_parts() -> None:
    plain = floor(1000, repeats=3)
    assert min(plain.commit_s, plain.file_s, plain.call_s) > 0
    assert plain.round_s == COMMITS * plain.commit_s + FILES * plain.file_s + CALLS * plain.call_s
