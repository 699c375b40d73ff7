"""Simulations on a Ray cluster of two nodes give the digests of one process, even if workers and nodes are lost."""

from __future__ import annotations

import importlib
import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from click.testing import CliRunner
from ray import _raylet
from ray._private import services
from ray._private.node import Node
from ray.cluster_utils import Cluster
from ray.exceptions import RayActorError
from safetensors.numpy import save_file

from atoll.client import Model, Participant, Task, Update
from atoll.server.jobs import JobSpec
from atoll.simulation import (
    Aggregation,
    Behaviour,
    Cohort,
    Federation,
    Job,
    Privacy,
    RayWorkers,
    RunFailedError,
    SetupError,
    WorkerError,
)
from atoll.simulation.cli import simulate
from atoll.simulation.cluster import connection
from atoll.simulation.cluster.link import Link, Ref
from atoll.simulation.cluster.node import ClusterNode
from tests.patience import WAIT_S, until_now
from tests.simulation.cluster.participants import Deadly, Drifting, broken
from tests.simulation.pretended_gpus import Limited, limits
from tests.simulation.test_behaviour import CROWD, CROWDED
from tests.simulation.test_cli import JOB
from tests.simulation.test_federation import MODEL, Stepping
from tests.simulation.test_process_pool import Random

PEOPLE = 12
SECRET = "07" * 32
JOBS: dict[str, tuple[JobSpec, Behaviour]] = {
    "fedavg": (Job(rounds=2, cohort=Cohort(size=8, seed=2)), Behaviour()),
    "late": (CROWDED, CROWD),
    "private": (
        Job(
            rounds=2,
            cohort=Cohort(size=PEOPLE, quorum=PEOPLE, sampler="least_recent"),
            aggregation=Aggregation(weighting="uniform"),
            privacy=Privacy(
                population="people",
                delta=1e-5,
                noise_multiplier=2.0,
                clip=1.0,
                mechanism="tree",
                max_participations=2,
                min_separation=1,
            ),
        ),
        Behaviour(),
    ),
}
"""Jobs, each with the behaviour that it is played with."""
LOST = ["fedavg", "late"]
"""Those that are always played while workers or a node are lost."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes of two cores on loopback, which this process has joined."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        for idle in ("RAY_enable_worker_prestart", "RAY_prestart_worker_first_driver"):
            patch.setenv(idle, "0")  # a node would start a process for each core, of which a run uses one or two
        patch.setenv("RAY_agent_register_timeout_ms", f"{WAIT_S * 1000:.0f}")
        patch.setenv("RAY_gcs_server_port_wait_time_s", f"{WAIT_S:.0f}")
        _raylet.Config.initialize("")  # type: ignore[attr-defined]  # Ray has read the environment already
        patch.setattr("ray._private.services.get_node", patient(services.get_node))
        made = Cluster()
        try:
            added(made, "127.0.0.2", include_dashboard=False, include_log_monitor=False, no_monitor=True)
            added(made, "127.0.0.3")
            ray.init(address=made.address, log_to_driver=False, _node_ip_address="127.0.0.2")
            yield made
        finally:
            ray.shutdown()
            made.shutdown()  # type: ignore[no-untyped-call]
    _raylet.Config.initialize("")  # type: ignore[attr-defined]


def patient(find: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    """Find a node that is starting however long it takes: Ray gives up after 30 s, and leaves its processes running."""

    def found(gcs_address: str, node_id: str) -> Any:
        until = time.monotonic() + WAIT_S
        while True:
            try:
                return find(gcs_address, node_id)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    return found


def added(cluster: Cluster, address: str, **options: Any) -> Any:
    """A new node of two cores."""
    return cluster.add_node(num_cpus=2, object_store_memory=100 << 20, node_ip_address=address, **options)


def nodes() -> int:
    """The nodes that Ray counts as alive."""
    return sum(node["Alive"] for node in ray.nodes())  # type: ignore[no-untyped-call]  # Ray leaves it untyped


def is_free() -> bool:
    """Whether no worker of a run is left."""
    free: float = ray.available_resources().get("CPU", 0.0)  # type: ignore[no-untyped-call]  # as above
    return free >= 2.0 * nodes()


@pytest.fixture
def runs(cluster: Cluster) -> Iterator[None]:
    """The cluster, for runs that leave no worker behind."""
    del cluster
    yield
    until_now(is_free, every_s=0.25)


def digest(name: str, workers: int | RayWorkers, make: Callable[[int], Participant] = Random) -> str:
    job, behaviour = JOBS[name]
    job = job.model_copy(update={"job": job.job.model_copy(update={"seed": 11})})
    federation = Federation(participants=make, population=PEOPLE, behaviour=behaviour)
    return federation.run(job, initial=MODEL, workers=workers).digest


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.every_case) for name in LOST), "private"])
def test_workers_on_two_nodes_give_the_digest_of_one_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.server.privacy.run.new_secret", lambda: bytes.fromhex(SECRET))
    assert digest(name, RayWorkers(count=2)) == digest(name, 0)


def ending(end: Callable[[Link], None], monkeypatch: pytest.MonkeyPatch, lost: str | None = None) -> list[str]:
    """End a worker, on another node or on ``lost``, when all updates are summed and the sums are about to be added."""
    ended: list[str] = []
    summed = ClusterNode._summed

    def late(node: ClusterNode, key: Any, shares: Any) -> Ref:
        if key.round == 1 and not ended:
            link = max(shares, key=lambda one: one.node == lost if lost else one.node != here())
            assert not lost or link.node == lost
            ended.append(link.name)
            end(link)
            gone(link)
        return summed(node, key, shares)

    monkeypatch.setattr(ClusterNode, "_summed", late)
    return ended


def gone(link: Link) -> None:
    """Wait until a worker answers no calls any more."""
    while True:
        try:
            ray.get(link.call("ping"), timeout=WAIT_S)
        except RayActorError:
            return


def here() -> str:
    return ray.get_runtime_context().get_node_id()


@pytest.mark.every_fault
@pytest.mark.usefixtures("runs")
def test_a_worker_lost_in_a_task_and_one_lost_with_its_sum_change_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    marker, ended = tmp_path / "killed", ending(Link.end, monkeypatch)
    assert digest("late", RayWorkers(count=2), lambda number: Deadly(number, marker)) == digest("late", 0)
    assert marker.exists()
    assert len(ended) == 1
    assert caplog.text.count("is lost; its updates are recomputed") >= 2


@pytest.mark.usefixtures("runs")
def test_a_participant_that_gives_another_update_when_asked_again_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(number: int) -> Participant:
        made = Drifting(number)
        made.marker = tmp_path / "asked"
        return made

    ending(Link.end, monkeypatch)
    ended: list[bool] = []
    end = Link.end

    def noted(link: Link) -> None:
        ended.append(bool(ray.wait([link.begun], timeout=0)[0]))
        end(link)

    monkeypatch.setattr(Link, "end", noted)
    monkeypatch.setattr("atoll.simulation.cluster.ray_actors.CLOSE_S", WAIT_S)  # a busy machine starts a worker in more
    federation = Federation(participants=make, population=4)
    with pytest.raises(RunFailedError, match=r"its update differs .*make it depend only on model, data and task.seed"):
        federation.run(Job(rounds=2, cohort=Cohort(size=4)), initial=MODEL, workers=RayWorkers(count=2))
    assert len(ended) >= 3  # the replacement too, which was starting when the run ended
    assert all(ended), "a worker was ended before it had started"


@pytest.mark.usefixtures("runs")
def test_a_task_that_ends_every_worker_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.simulation.cluster.records.TRIES", 2)

    class Fatal(Stepping):
        def fit(self, model: Model, task: Task) -> Update:
            if self.number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().fit(model, task)

    with pytest.raises(WorkerError, match=r"the task of p\d in round 1 has ended every worker"):
        Federation(participants=Fatal, population=4).run(
            Job(rounds=1, cohort=Cohort(size=4)), initial=MODEL, workers=RayWorkers(count=1)
        )


@pytest.mark.usefixtures("runs")
class TestThirdNode:
    """Workers on a third node, of two GPUs, which the last test removes."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def node(cls, cluster: Cluster) -> Iterator[Node]:
        node = added(cluster, "127.0.0.4", num_gpus=2)
        yield node
        if node in cluster.worker_nodes:
            cluster.remove_node(node)
        until_now(lambda: nodes() == 2, every_s=0.25)  # Ray counts the cores and GPUs of a killed node for 14 s

    @pytest.mark.parametrize("gpus", [0.5, pytest.param(1.0, marks=pytest.mark.every_case)])
    def test_workers_may_take_no_more_of_a_gpus_memory_than_their_share(self, gpus: float, tmp_path: Path) -> None:
        federation = Federation(participants=Limited(tmp_path), population=4)
        job = Job(rounds=1, cohort=Cohort(size=4))
        assert federation.run(job, initial=MODEL, workers=RayWorkers(2, gpus=gpus)).history.rows()[0]["reported"] == 4
        found = limits(tmp_path).values()
        assert {device for device, _ in found} <= {"0", "1"}
        assert [share for _, share in found] == ([0.5, 0.5] if gpus < 1 else [])

    def test_a_worker_that_cannot_limit_its_memory_ends_the_run_before_its_first_round(self) -> None:
        with pytest.raises(SetupError, match=r"gpus = 0.5: a worker cannot use the GPU '[01]': (.|\n)*use CUDA only"):
            Federation(participants=Stepping, population=4).run(
                Job(rounds=1, cohort=Cohort(size=4)), initial=MODEL, workers=RayWorkers(1, gpus=0.5)
            )

    def test_a_lost_worker_and_a_lost_node_change_no_bit(
        self,
        cluster: Cluster,
        node: Node,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """One worker is lost in a task, another one with its sum and its node."""
        marker = tmp_path / "killed"
        ended = ending(lambda _: cluster.remove_node(node, allow_graceful=False), monkeypatch, node.node_id)
        assert digest("late", RayWorkers(count=3), lambda number: Deadly(number, marker)) == digest("late", 0)
        assert marker.exists()
        assert len(ended) == 1
        assert caplog.text.count("is lost; its updates are recomputed") >= 2


LOCK = threading.Lock()


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("make", "workers", "message"),
    [
        (broken, RayWorkers(count=1), "LookupError: no folder for"),
        (
            lambda number: LOCK and Stepping(number),
            RayWorkers(1),
            "cannot be sent to workers on Ray: define it, (.|\n)*LOCK",
        ),
        (
            Stepping,
            RayWorkers(gpus=1),
            "no node of the cluster has 1 CPU and 1 GPU for a worker, together they have 4 CPU",
        ),
        (Stepping, RayWorkers(1, gpus=1, start_s=0.5), "0 of 1 workers have started on Ray within 0.5 s; each needs 1"),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(
    make: Callable[[int], Participant], workers: RayWorkers, message: str
) -> None:
    with pytest.raises(SetupError, match=message):
        Federation(participants=make, population=4).run(
            Job(rounds=1, cohort=Cohort(size=4)), initial=MODEL, workers=workers
        )


@pytest.mark.usefixtures("runs")
def test_a_module_that_workers_do_not_have_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"only_here_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("def make(number):\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    federation = Federation(participants=importlib.import_module(name).make, population=4)
    with pytest.raises(SetupError, match=f"No module named '{name}'") as refusal:
        federation.run(Job(rounds=1, cohort=Cohort(size=4)), initial=MODEL, workers=RayWorkers(1))
    until_now(is_free, every_s=0.25)
    del refusal  # it holds what refers to the workers: they were ended, not collected


@pytest.mark.usefixtures("runs")
def test_the_command_plays_a_job_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(JOB)
    save_file(MODEL, "initial.safetensors")
    people = ["--participants", "tests.simulation.test_federation:Stepping", "--population", "4"]
    done = CliRunner().invoke(simulate, ["job.toml", *people, "--backend", "ray", "--workers", "1", "--json"])
    assert done.exit_code == 0, done.output
    assert [row["reported"] for row in json.loads(done.stdout)["rounds"][:2]] == [3, 3]


def test_as_many_workers_as_there_is_room_for(cluster: Cluster) -> None:
    del cluster
    assert connection.room_for(RayWorkers()) == 4
    assert connection.room_for(RayWorkers(cpus=0.5)) == 8
