"""Participants without a stream in virtual time: the evenness of their check-ins after an outage.

The server's own admission and pace steering and the client's own delays, with a clock that does not wait
(``tests/server/runs/virtual_phones.py``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.figures import Figure
from benchmarks.options import Options, progress

FLAT = 1.25
"""Target for the fullest second after the outage, as a multiple of the server's rate."""


def figures(options: Options) -> Iterator[Figure]:
    """100,000 participants: ten minutes, an outage of three minutes, and ten minutes more."""
    from tests.server.runs import virtual_phones  # noqa: PLC0415 - of the extra `dev`

    count = 1000 if options.smoke else virtual_phones.MANY
    command = options.command("fleet")
    progress(f"{count} participants without a stream, in virtual time")
    before_s = time.process_time()
    there = virtual_phones.after_an_outage(forgets=False, count=count)
    spent_s = time.process_time() - before_s
    back = int(virtual_phones.MINUTES_10 + virtual_phones.OUTAGE_S)
    usual, _ = there.rates(there.attempts, 500, 600)
    later, _ = there.rates(there.attempts, back + 500, back + 600)
    _, most = there.rates(there.attempts, back, back + int(virtual_phones.MINUTES_10))
    name, asked = f"{count:,} phones, outage of {virtual_phones.OUTAGE_S:.0f} s", there.settings.per_s
    fullest = f"{name}: fullest second of the ten minutes after, beside `per_s`"
    yield Figure.within(fullest, most, "1/s", command, limit=asked, target=FLAT)
    yield Figure.stated(f"{name}: check-ins ten minutes after, beside before", later, "1/s", command, beside=usual)
    yield Figure.stated(f"{name}: processor time of both ends' decisions", spent_s, "s", command)
