"""The C heap keeps the memory of chunks: seen by page faults of a process of its own."""

import subprocess
import sys

import pytest

_SCRIPT = """
import resource
from atoll.wire.heap import keep_chunks
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
def test_chunks_that_come_and_go_cost_no_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], check=True, capture_output=True, timeout=60)
    chunk_pages = (2 << 20) // 4096
    assert int(done.stdout) < chunk_pages, "80 chunks passed"
