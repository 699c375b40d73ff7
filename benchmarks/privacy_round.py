"""The cost of central differential privacy in a round: clipping, noise on every element, the charge.

The same server and participants run plain and private rounds in turn, so that a busy machine slows both.
"""

from __future__ import annotations

import statistics

from benchmarks.federation import JOB, Course, Federation, federation
from benchmarks.figures import Figure
from benchmarks.options import Options, progress

OVERHEAD = 1.3
REPEATS = 3
_PLAIN = JOB + '[aggregation]\nweighting = "uniform"\n'
# Without a random draw, because a round with a secret draw lasts until its deadline.
_PRIVATE = (
    _PLAIN.replace("[cohort]", '[cohort]\nsampler = "least_recent"')
    + """
[privacy]
population = "benchmark"
noise_multiplier = 1.0
delta = 1e-6
clip = 1.0
mechanism = "gaussian"
max_participations = {rounds}
"""
)


def run(options: Options) -> list[Figure]:
    """Rounds of 100 MB with four participants, plain and private."""
    clients, rounds = options.or_else(options.clients, 4, 2), options.or_else(options.rounds, 6, 3)
    megabytes = options.or_else(options.model_mb, 100.0, 0.1)
    elements = round(megabytes * 1e6 / 4)
    plain: list[Course] = []
    private: list[Course] = []
    with federation(clients=clients, tls=options.tls is not False) as place:
        for repeat in range(1 if options.smoke else REPEATS):
            for courses, job in ((plain, _PLAIN), (private, _PRIVATE)):
                progress(f"repeat {repeat + 1}: {'plain' if courses is plain else 'private'} rounds")
                courses.append(_played(place, job, elements, rounds, clients))
    name, command = f"{megabytes:g} MB, {clients} clients", options.command("privacy-round")
    usual, noised = _median(plain), _median(private)
    return [
        Figure.within(f"{name}: a private round", noised, "s", command, limit=usual, target=OVERHEAD),
        Figure.stated(f"{name}: processor time of a private round", _cpu(private), "s", command, beside=_cpu(plain)),
        Figure.stated(
            f"{name}: server memory of private rounds",
            max(course.server.anonymous for course in private) / 1e6,
            "MB",
            command,
            beside=max(course.server.anonymous for course in plain) / 1e6,
        ),
    ]


def _played(place: Federation, job: str, elements: int, rounds: int, clients: int) -> Course:
    return place.run(elements=elements, rounds=rounds, clients=clients, job=job)


def _median(courses: list[Course]) -> float:
    return statistics.median(second for course in courses for second in course.seconds)


def _cpu(courses: list[Course]) -> float:
    return statistics.mean(course.cpu_s for course in courses)
