import textwrap

from atoll.settings.lines import key_lines, line_of

TEXT = textwrap.dedent('''\
    # a comment = 1
    top = 1
    [ straggler . learned ]
    min_s = 3
    "quoted key" = 2
    text = """
    [job]
    not_a_key = 1
    """
    a.b = 4
    ''')


def test_keys_are_found_on_their_lines() -> None:
    assert key_lines(TEXT) == {
        "top": 2,
        "straggler.learned": 3,
        "straggler.learned.min_s": 4,
        "straggler.learned.quoted key": 5,
        "straggler.learned.text": 6,
        "straggler.learned.a.b": 10,
    }


def test_a_key_without_a_line_takes_that_of_its_table() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, "straggler.learned.max_s") == 3
    assert line_of(lines, "job.rounds") is None
