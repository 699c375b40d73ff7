"""Whether the server's memory stays flat in the number of participants.

A participant's update is one number viewed as an array, so that many fit one machine; uploads have the full size.
"""

from __future__ import annotations

from benchmarks.bulk import MB, SERVER_MB, SERVER_MODELS
from benchmarks.federation import federation
from benchmarks.figures import Figure
from benchmarks.options import Options, progress

FEW, MANY = 2, 16
FLAT = 1.05


def run(options: Options) -> list[Figure]:
    """Peak anonymous memory of the server at 1 GB with 2 clients and with 16; one number of clients if it is given."""
    model_mb, rounds = options.or_else(options.model_mb, 1000.0, 1.0), options.or_else(options.rounds, 3, 1)
    command = options.command("memory")
    if options.smoke or options.clients is not None:
        clients = options.clients or FEW
        return [_limited(_peak_mb(model_mb, clients, rounds, options), model_mb, clients, command)]
    few, many = (_peak_mb(model_mb, clients, rounds, options) for clients in (FEW, MANY))
    return [
        _limited(few, model_mb, FEW, command),
        _limited(many, model_mb, MANY, command),
        Figure.within(f"  {MANY} clients beside {FEW}", many, "MB", command, limit=few, target=FLAT),
    ]


def _peak_mb(model_mb: float, clients: int, rounds: int, options: Options) -> float:
    progress(f"memory with {clients} clients")
    elements = int(model_mb * MB) // 4
    with federation(
        clients=clients, tls=options.tls is True, workers=options.workers or 1, weights="constant"
    ) as place:
        return place.run(elements=elements, rounds=rounds, clients=clients).server.anonymous / MB


def _limited(peak_mb: float, model_mb: float, clients: int, command: str) -> Figure:
    most = SERVER_MODELS * model_mb + SERVER_MB
    return Figure.at_most(f"server anonymous memory, {model_mb:g} MB, {clients} clients", peak_mb, "MB", most, command)
