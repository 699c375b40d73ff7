"""Options of the whole suite."""

from __future__ import annotations

import gc
import os
import signal

import hypothesis
import pytest

SEEDS = 1
"""Number of seeds of a test of random faults, unless ``--seeds`` sets it."""

# Set before a library that reads them is loaded, and for every process that a test starts: threads that wait for each
# other slow down models this small, most of all when two halves of the suite share the cores.
for pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(pool, "1")

# Tests use no name server. torch looks up the name of each address that it connects to, also of the loopback's in the
# form of IPv6, which /etc/hosts rarely has: a server that does not answer would make each rank wait for seconds.
os.environ.setdefault("RES_OPTIONS", "attempts:0")

# Ray's workers yield to all other processes (nice 15) by default: beside four busy ones on two
# cores they get next to nothing, and the tests of Ray take a quarter of an hour.
os.environ.setdefault("RAY_worker_niceness", "0")

# A shell starts what it puts in the background with SIGINT ignored, and every process that a test starts and
# interrupts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Property tests judge results, not the speed of a busy machine.
for profile, examples in (("some-examples", 25), ("every-example", 100)):
    hypothesis.settings.register_profile(profile, deadline=None, max_examples=examples)


KINDS = {
    "case": "try each case of what one case always tests",
    "fault": "play each fault of a disk, not one of each kind",
    "layout": "train in each layout of ranks, not one of each kind",
    "schedule": "play 12,500 random schedules, crash at each point",
    "step": "train ten steps in each layout of ranks, not three",
    "study": "train the study of each framework over processes",
}
"""What a commit leaves out, each with a flag ``--every-KIND``; ``--every`` runs all of it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every", action="store_true", help="set each of the flags --every-...: leave nothing out")
    for kind, purpose in KINDS.items():
        parser.addoption(f"--every-{kind}", action="store_true", help=purpose)
    parser.addoption("--rewrite-mistakes", action="store_true", help="write tests/mistakes/mistakes.md anew")
    parser.addoption(
        "--seeds",
        type=int,
        default=SEEDS,
        metavar="N",
        help=f"play tests of random faults with seeds 0 to N - 1 (default: {SEEDS})",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Apply ``--every``, set the number of examples, and pass that of steps on to the processes that tests start."""
    if config.getoption("every"):
        for kind in KINDS:
            setattr(config.option, f"every_{kind}", True)
    hypothesis.settings.load_profile("every-example" if config.getoption("every_case") else "some-examples")
    if config.getoption("every_step"):
        os.environ["ATOLL_TESTS_EVERY_STEP"] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a marker ``every_KIND`` leaves to its flag."""
    unasked = [f"every_{kind}" for kind in KINDS if not config.getoption(f"every_{kind}")]
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in unasked)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Exclude modules and tests, which stay until the end, from garbage collection: a tenth of the processor time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take a ``fault_seed`` are played once for each seed."""
    if "fault_seed" in metafunc.fixturenames:
        metafunc.parametrize("fault_seed", range(int(metafunc.config.getoption("seeds") or 0)))
