"""The cost of privacy: digits over hundreds of participants at epsilon 8, by mechanism, compared with no noise.

A simulation in this process: participants are shards, and there is no transport. The network is the demo's; sums,
clipping, noise and release are the daemon's (``privacy_audit.rehearsal``); epsilon is the ledger's. The picture goes to
benchmarks/results/privacy-digits.svg.

Clip norms and server settings were chosen for each mechanism on seeds 1 and 2, and are measured on other seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, pstdev

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure as Drawing

from atoll.client.demo.digits import Weights, forward, loss_and_gradients
from atoll.server.aggregation.iterates import share_of
from atoll.server.aggregation.optimisers import FedAvgM
from atoll.server.demo.data import Digits, load_digits
from atoll.server.demo.model import LAYOUT, initial_weights
from atoll.server.jobs import parse_job
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.deriving import contract_of
from atoll.server.privacy_audit.rehearsal import PLAIN_MEAN, Rehearsal, Safeguards
from atoll.server.sampling import DrawRequest, Eligible, sampler_named
from benchmarks.figures import RESULTS, Figure
from benchmarks.options import Options, progress

EPSILON, DELTA = 8.0, 1e-5
PARTICIPANTS = 479
FEWER = (120, 240)
SEEDS = (11, 12, 13, 14, 15)
ROUNDS = 60
LOCAL_STEPS, LOCAL_LR = 3, 0.3
HELD_OUT_SHARE = 0.2
NOT_PRIVATE = "not private"
_NO_CLIP = 1e6
_JOB = """
[job]
name = "digits"
rounds = {rounds}
[model]
initial = "initial.safetensors"
[cohort]
size = {size}
quorum = 0
{draw}
{plain_mean}
[privacy]
population = "digits"
{target}
delta = {delta}
clip = {clip}
{noise}
"""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Way:
    """A way to train, with its settings.

    Attributes:
        name: in words.
        sampler: "poisson": half of all, at random; or "least_recent": each half of the participants in every other
            round, as if by availability.
        mechanism: of the noise.
        clip, momentum, lr: the best on seeds 1 and 2; momentum and learning rate are the server's.
        decay: of the mean of the released models, which is evaluated instead of the last model; None: the last one is.
    """

    name: str
    sampler: str
    mechanism: str
    clip: float
    momentum: float
    lr: float
    decay: float | None = None


WAYS = (
    Way(NOT_PRIVATE, "least_recent", "gaussian", _NO_CLIP, 0.5, 1.0),
    Way("BLT noise, no random draw, mean of the models", "least_recent", "blt", 0.1, 0.8, 2.0, 0.9),
    Way("BLT noise, no random draw", "least_recent", "blt", 0.1, 0.9, 3.0),
    Way("banded noise, no random draw", "least_recent", "banded", 0.1, 0.9, 3.0),
    Way("Gaussian, Poisson draw, mean of the models", "poisson", "gaussian", 0.1, 0.5, 3.0, 0.9),
    Way("Gaussian, Poisson draw", "poisson", "gaussian", 0.3, 0.5, 3.0),
    Way("Gaussian, no random draw", "least_recent", "gaussian", 0.3, 0.5, 3.0),
    Way("tree noise, no random draw", "least_recent", "tree", 0.1, 0.9, 1.0),
)


@dataclass(frozen=True)
class Curve:
    """Held-out accuracy after each round, that of the last model itself, and the final epsilon."""

    accuracy: list[float]
    last: float
    epsilon: float


def run(options: Options) -> list[Figure]:
    """All ways, at several numbers of participants; takes some minutes."""
    participants, rounds = (
        options.or_else(options.clients, PARTICIPANTS, 40),
        options.or_else(options.rounds, ROUNDS, 2),
    )
    seeds, fewer = (SEEDS[:1], ()) if options.smoke else (SEEDS, tuple(n for n in FEWER if n < participants))
    command = options.command("privacy-digits")
    curves = {way.name: [_train(way, participants, rounds, seed) for seed in seeds] for way in WAYS}
    ends = {way.name: {participants: [one.accuracy[-1] for one in curves[way.name]]} for way in WAYS}
    for way in WAYS:
        for count in fewer:
            ends[way.name][count] = [_train(way, count, rounds, seed).accuracy[-1] for seed in seeds[:3]]
    if not options.smoke:
        _draw(curves, ends, RESULTS / "privacy-digits.svg")
    return list(_figures(curves, ends, participants, command))


def _figures(
    curves: dict[str, list[Curve]], ends: dict[str, dict[int, list[float]]], participants: int, command: str
) -> Iterator[Figure]:
    plain, averaged = ends[NOT_PRIVATE], {way.name for way in WAYS if way.decay is not None}
    for name, by_count in ends.items():
        for count, found in by_count.items():
            beside = None if name == NOT_PRIVATE else mean(plain[count])
            what = f"accuracy, {name}, {count} participants"
            yield Figure.stated(what, mean(found), "", command, beside=beside)
        yield Figure.stated("  its spread over seeds (standard deviation)", pstdev(by_count[participants]), "", command)
        if name in averaged:
            last = mean(curve.last for curve in curves[name])
            yield Figure.stated(f"  the last model of the same runs, {participants} participants", last, "", command)
        if name != NOT_PRIVATE:
            spent = max(curve.epsilon for curve in curves[name])
            yield Figure.at_most(f"  epsilon charged, at delta {DELTA:g}", spent, "", EPSILON, command)


def _train(way: Way, participants: int, rounds: int, seed: int) -> Curve:
    """One run in this process."""
    shards, held_out = _deal(load_digits(), participants, seed)
    contract = contract_for(way, participants, rounds)
    private = way.name != NOT_PRIVATE
    run = Rehearsal(
        contract,
        LAYOUT,
        _flat(initial_weights(seed)),
        most=participants,
        optimiser=FedAvgM(way.lr, way.momentum),
        safeguards=None if private else Safeguards(noise=0.0, clipping=False),
    )
    accuracy = []
    mean = np.zeros(LAYOUT.size)
    for number in range(rounds):
        start = _named(run.model)
        run.release(_update(start, shards[member]) for member in _members(way, participants, number, seed))
        mean += share_of(way.decay or 0.0, number + 1) * (run.model - mean)
        accuracy.append(_accuracy(_named(mean.astype(np.float32)), held_out))
    epsilon = contract.epsilon_after(rounds) if private else float("inf")
    progress(f"{participants} participants, {way.name}, seed {seed}: {accuracy[-1]:.4f}")
    return Curve(accuracy, _accuracy(_named(run.model), held_out), epsilon)


def contract_for(way: Way, participants: int, rounds: int) -> Contract:
    """The contract of the corresponding job."""
    size = participants // 2
    draw = {
        "poisson": f'sampler = "poisson"\nrate = {size / participants}',
        "least_recent": 'sampler = "least_recent"',
    }[way.sampler]
    noise = f'mechanism = "{way.mechanism}"\n'
    if way.sampler == "least_recent":
        noise += f"max_participations = {-(-rounds // 2)}\nmin_separation = 2\n"
    privacy = {"target": f"epsilon = {EPSILON}", "delta": DELTA, "clip": way.clip, "noise": noise}
    text = _JOB.format(rounds=rounds, size=size, draw=draw, plain_mean=PLAIN_MEAN, **privacy)
    found = contract_of(parse_job(text.encode(), "job.toml"))
    assert found is not None
    return found


def _members(way: Way, participants: int, number: int, seed: int) -> list[int]:
    if way.sampler == "least_recent":
        return list(range(number % 2, 2 * (participants // 2), 2))
    everyone = tuple(Eligible(f"p{member:012}") for member in range(participants))
    size = participants // 2
    request = DrawRequest(everyone, size, seed, number, rate=size / participants)
    return [int(member[1:]) for member, _ in sampler_named(way.sampler).draw(request).members]


def _deal(digits: Digits, participants: int, seed: int) -> tuple[list[Digits], Digits]:
    """Equal numbers of random examples for each participant, and a fifth of all examples for the test."""
    order = np.random.default_rng(seed).permutation(len(digits))
    cut = round(HELD_OUT_SHARE * len(digits))
    rest = order[cut:]
    each = len(rest) // participants
    return [digits.at(rest[n * each : (n + 1) * each]) for n in range(participants)], digits.at(order[:cut])


def _update(start: Weights, shard: Digits) -> Floats:
    """Local minus global weights after ``LOCAL_STEPS`` steps over all of a participant's examples."""
    weights = {name: values.copy() for name, values in start.items()}
    for _ in range(LOCAL_STEPS):
        _, gradients = loss_and_gradients(weights, shard.images, shard.labels)
        for name, gradient in gradients.items():
            weights[name] -= np.float32(LOCAL_LR) * gradient
    return _flat({name: weights[name] - start[name] for name in weights})


def _accuracy(weights: Weights, digits: Digits) -> float:
    logits, _ = forward(weights, digits.images)
    return float(np.mean(logits.argmax(axis=1) == digits.labels))


def _flat(weights: Weights) -> Floats:
    return np.concatenate([weights[spec.name].ravel() for spec in LAYOUT.tensors]).astype(np.float32)


def _named(model: Floats) -> Weights:
    return {span.spec.name: model[span.start : span.stop].reshape(span.spec.shape) for span in LAYOUT.spans}


def _draw(curves: dict[str, list[Curve]], ends: dict[str, dict[int, list[float]]], path: Path) -> None:
    """Accuracy by round, and by number of participants."""
    drawing = Drawing(figsize=(10, 4), layout="constrained")
    by_round, by_count = drawing.subplots(1, 2, sharey=True)
    for name, found in curves.items():
        accuracy = np.mean([curve.accuracy for curve in found], axis=0)
        style = {"linestyle": "--", "color": "black"} if name == NOT_PRIVATE else {}
        (line,) = by_round.plot(np.arange(1, accuracy.size + 1), accuracy, label=name, **style)
        counts = sorted(ends[name])
        heights = [mean(ends[name][count]) for count in counts]
        spread = [pstdev(ends[name][count]) for count in counts]
        by_count.errorbar(
            counts, heights, spread, marker="o", markersize=4, capsize=3, **style | {"color": line.get_color()}
        )
    by_round.set(xlabel="rounds", ylabel="held-out accuracy", ylim=(0.5, 1.0))
    by_round.set_title(f"{max(ends[NOT_PRIVATE])} participants, half of them in each round", fontsize=9)
    by_count.set(xlabel="participants")
    by_count.set_title(f"at the end: epsilon {EPSILON:g}, delta {DELTA:g}", fontsize=9)
    by_round.legend(fontsize=7, loc="lower right")
    drawing.savefig(path, metadata={"Date": None})
