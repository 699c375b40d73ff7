import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.sampling import Sampler, cpu_s_of, disk_bytes, family, memory_of
from tests.patience import WAIT_S

BUSY = """
import time
room = bytearray(b"x") * (64 << 20)
until = time.process_time() + 0.5
while time.process_time() < until:
    pass
print("spent", flush=True)
input()
"""


def test_peaks_and_processor_time_of_a_process() -> None:
    started = time.time()
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with Sampler({"busy": process.pid}) as sampler:
        assert process.stdout.readline() == b"spent\n"
        stopped = time.time()
    process.communicate(b"\n", timeout=WAIT_S)
    assert sampler.peak("busy").anonymous > 64 << 20
    assert 0.3 < sampler.cpu_s(started, stopped + 1.0) < 60


def test_a_process_that_has_ended_counts_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(60)
    assert memory_of(process.pid).anonymous == 0
    assert cpu_s_of([process.pid]) == 0.0


def test_children_belong_to_the_family() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in family(os.getpid())
    finally:
        child.communicate(b"\n", timeout=WAIT_S)


def test_the_disk_usage_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(bytes(1 << 16))
    assert disk_bytes(tmp_path) >= 1 << 16
