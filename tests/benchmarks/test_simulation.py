from pathlib import Path

from benchmarks.simulation.data import save_digits
from benchmarks.simulation.workloads import Workload, train


def test_a_workload_is_read_as_it_was_dealt(tmp_path: Path) -> None:
    save_digits(tmp_path / "digits.npz", population=7, size=2, rounds=3)
    workload = Workload.read(str(tmp_path / "digits.npz"))
    assert (workload.population, workload.size, workload.rounds, workload.hidden) == (7, 2, 3, 32)
    assert sum(len(workload.rows(number)[0]) for number in range(7)) + len(workload.y_test) == 1797
    module = workload.module()
    losses = [train(module, *workload.rows(0)) for _ in range(3)]
    assert losses[-1] < losses[0]
    assert workload.accuracy(module) > 0.2
