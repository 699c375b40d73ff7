"""A silo's exchange with the server, compared with plain gRPC streams of the same bytes, and its ranks' memory.

One silo of two ranks under ZeRO-3 takes part in its own federation on loopback. A round's exchange lasts from the first
rank's beginning to the last rank's end, down and up. As in ``benchmarks.bulk``, some rounds pass first, until the
server's files are overwritten. The baseline is two plain streams of half the bytes each, down and up: the mean of a
measurement before and one after. Both use three processes, two connections without TLS and messages of 2 MiB. The plain
streams send existing bytes and count received ones; nothing is hashed, checked, subtracted or kept.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from atoll.datacenter.federation.initial import write_initial
from atoll.datacenter.job import load_job
from benchmarks import baselines
from benchmarks.bulk import WARM_UP
from benchmarks.federation import Federation, federation, participant_id
from benchmarks.figures import Figure
from benchmarks.options import progress

COMMAND = "python -m benchmarks.silo exchange"
TARGET = 1.5
SHARDS, SPARE_MB = 2.0, 64.0
MB = 1e6
RANKS = 2
_SMALL = {"layers": 2, "dim": 64, "heads": 4, "ffn_dim": 192}
_LARGE = {"layers": 20, "dim": 1024, "heads": 16, "ffn_dim": 2816}
_JOB = """
[job]
name = "exchange"
steps = 100
[model]
vocab = 256
{model}
[batch]
sequence = 16
global_batch = 2
micro_batch = 1
[optimiser]
name = "sgd"
[data_parallel]
method = "zero3"
[federation]
inner_steps = 1
"""
_SERVERS = """
[job]
name = "exchange"
rounds = {rounds}
[model]
initial = "initial.safetensors"
[cohort]
size = 1
[evaluation]
before_training = false
final = false
"""


def run(smoke: bool) -> list[Figure]:
    """1 GB over two ranks, in plaintext like the streams."""
    model, rounds, warm_up = (_SMALL, 2, 1) if smoke else (_LARGE, WARM_UP + 5, WARM_UP)
    options = ["--keep-models", "1"]
    with tempfile.TemporaryDirectory() as folder, federation(clients=0, tls=False, options=options) as place:
        size = _write(Path(folder), model, rounds)
        before = _plain(size, smoke=smoke)
        notes = _take_part(place, Path(folder), rounds)
        after = _plain(size, smoke=smoke)
    plain = baselines.Streams.mean([before, after])
    measured = _rounds(notes)[warm_up:]
    seconds = {kind: [one[kind] for one in measured] for kind in ("fetch", "send")}
    both = statistics.median(map(sum, zip(*seconds.values(), strict=True)))
    what = f"exchange of {size / MB:.0f} MB, {RANKS} ranks"
    beside = Figure.within(what, both, "s", COMMAND, limit=plain.total_s, target=TARGET)
    if smoke:
        beside = Figure.stated(what, both, "s", COMMAND, beside=plain.total_s)
    return [
        beside,
        Figure.stated("  down", statistics.median(seconds["fetch"]), "s", COMMAND, beside=plain.down_s),
        Figure.stated("  up", statistics.median(seconds["send"]), "s", COMMAND, beside=plain.up_s),
        *_processor_time(measured, plain),
        _memory(notes, size),
    ]


def _processor_time(rounds: list[dict[str, float]], plain: baselines.Streams) -> list[Figure]:
    """Processor time of all processes, by process and direction."""
    where = {
        f"    {'down' if kind == 'fetch' else 'up'}, {who}": statistics.median(one[f"{kind} {who}"] for one in rounds)
        for kind in ("fetch", "send")
        for who in ("ranks", "server")
    }
    both = Figure.stated("  processor time, both ways", sum(where.values()), "s", COMMAND, beside=plain.cpu_s)
    return [both, *(Figure.stated(name, spent, "s", COMMAND) for name, spent in where.items())]


def _plain(size: int, *, smoke: bool) -> baselines.Streams:
    found = baselines.streams(size // RANKS, RANKS, repeats=1 if smoke else 3)
    progress(f"{size / MB:.0f} MB over {RANKS} plain streams: {found.down_s:.2f} s down, {found.up_s:.2f} s up")
    return found


def _write(folder: Path, model: dict[str, int], rounds: int) -> int:
    """Write the files; return the size of the model in bytes."""
    job = folder / "job.toml"
    job.write_text(_JOB.format(model="\n".join(f"{name} = {value}" for name, value in model.items())))
    (folder / "server.toml").write_text(_SERVERS.format(rounds=rounds))
    return write_initial(load_job(job), folder / "initial.safetensors").size_bytes


def _take_part(place: Federation, folder: Path, rounds: int) -> list[dict[str, Any]]:
    """The records of each rank."""
    assert place.server is not None
    place.environment |= {"EXCHANGING": str(folder), "EXCHANGING_SERVER": str(place.server.pid)}
    access = [
        "--state",
        str(folder / "state"),
        "--server",
        place.address,
        "--insecure",
        "--participant",
        participant_id(0),
    ]
    join = [str(folder / "job.toml"), "--nproc", str(RANKS), "--max-rounds", str(rounds), *access]
    silo = place.start_process([sys.executable, "-m", "benchmarks.silo.joining", *join], "silo")
    place.call("run", "submit", str(folder / "server.toml"))
    if silo.wait(600) != 0:
        raise RuntimeError(f"the silo has failed:\n{place.log('silo')[-4000:]}")
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]


def _rounds(notes: list[dict[str, Any]]) -> list[dict[str, float]]:
    """For each round and kind of exchange, seconds from the first rank's beginning to the last one's end.

    Under ``KIND ranks`` and ``KIND server`` it also has their processor seconds during the exchange.
    """
    found: list[dict[str, float]] = []
    for kind in ("fetch", "send"):
        every = [[one for one in rank["exchanges"] if one["kind"] == kind] for rank in notes]
        for number, ranks in enumerate(zip(*every, strict=True)):
            if number == len(found):
                found.append({})
            found[number][kind] = max(one["ended"] for one in ranks) - min(one["began"] for one in ranks)
            found[number][f"{kind} ranks"] = sum(one["cpu"] for one in ranks)
            spent = [one["server"] for one in ranks]
            found[number][f"{kind} server"] = max(end for _, end in spent) - min(begin for begin, _ in spent)
    return found


def _memory(notes: list[dict[str, Any]], size: int) -> Figure:
    """Peak memory of the largest rank, minus its process's memory before the model existed."""
    most = max(one["peak"] - rank["before"] for rank in notes for one in rank["exchanges"])
    bound = SHARDS * size / RANKS / MB + SPARE_MB
    return Figure.at_most("  anonymous memory of a rank in an exchange", most / MB, "MB", bound, COMMAND)
