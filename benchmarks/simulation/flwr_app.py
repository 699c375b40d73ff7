"""A workload run by flwr's simulation: ``python -m benchmarks.simulation.flwr_app WORKLOAD``, in flwr's environment."""

# pyright: reportMissingImports=false
from __future__ import annotations

import sys
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.simulation.workloads import CORES, Workload, main, train

_read: dict[str, Workload] = {}


def _workload(path: str) -> Workload:
    """Read once in each process."""
    torch.set_num_threads(1)
    if path not in _read:
        _read[path] = Workload.read(path)
    return _read[path]


def play(workload: Workload) -> torch.nn.Module:
    """Train with one actor per core, and evaluate only the last model."""
    path, module, made = sys.argv[1], workload.module(), list[Any]()
    client_app, server_app = ClientApp(), ServerApp()

    def fit(message: Message, context: Context) -> Message:
        known = _workload(path)
        mine = known.module()
        mine.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = known.rows(int(context.node_config["partition-id"]))
        loss = train(mine, x, y)
        metrics = MetricRecord({"loss": loss, "num-examples": len(x)})
        content = RecordDict({"arrays": ArrayRecord(mine.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    def serve(grid: Grid, context: Context) -> None:
        del context
        strategy = FedAvg(
            fraction_train=workload.size / workload.population,
            fraction_evaluate=0.0,
            min_train_nodes=workload.size,
            min_available_nodes=workload.population,
        )
        initial = ArrayRecord(module.state_dict())
        made.append(strategy.start(grid=grid, initial_arrays=initial, num_rounds=workload.rounds))

    client_app.train()(fit)
    server_app.main()(serve)
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=workload.population,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": CORES}},
    )
    module.load_state_dict(made[0].arrays.to_torch_state_dict())
    return module


if __name__ == "__main__":
    main(play)
