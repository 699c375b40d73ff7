"""The C heap keeps the memory of chunks, measured by page faults of a separate process."""

import subprocess
import sys

import pytest

from tests.patience import WAIT_S

_SCRIPT = """
import resource
from atoll.processes.heap import keep_chunks
keep_chunks()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def pass_on():
    chunks = [bytes(bytearray(2 << 20)) for _ in range(4)]
    del chunks
for _ in range(4):
    pass_on()
before = faults()
for _ in range(20):
    pass_on()
print(faults() - before)
"""


_LEFT = """
from pathlib import Path
from atoll.processes.heap import give_back, keep_chunks
keep_chunks()
def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))
chunks = []
pins = []
for _ in range(20):
    chunks.append(bytearray(2 << 20))
    pins.append(bytes(3000))  # what lives on above a chunk keeps the heap from shrinking
before = resident()
chunks.clear()
held = resident()
give_back()
print(before - held, held - resident())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
def test_chunks_that_come_and_go_cost_no_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], check=True, capture_output=True, timeout=WAIT_S)
    chunk_pages = (2 << 20) // 4096
    assert int(done.stdout) < chunk_pages, "80 chunks passed"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
def test_free_memory_between_used_blocks_is_returned_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", _LEFT], check=True, capture_output=True, timeout=WAIT_S)
    by_itself, given_back = map(int, done.stdout.split())
    assert by_itself < 4 << 20, "else there was nothing to give back"
    assert given_back > 30 << 20
