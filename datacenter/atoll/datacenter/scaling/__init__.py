"""How loss and speed scale: published laws, a fit to your own runs, tables over ranks."""

from atoll.datacenter.scaling.laws import LAWS, KaplanLaw, Law, Optimum, ParametricLaw, ScalingError
from atoll.datacenter.scaling.runs import MeasuredRun, read_runs
from atoll.datacenter.scaling.speedup import Speedup, amdahl, gustafson, speedup_of

__all__ = [
    "LAWS",
    "KaplanLaw",
    "Law",
    "MeasuredRun",
    "Optimum",
    "ParametricLaw",
    "ScalingError",
    "Speedup",
    "amdahl",
    "gustafson",
    "read_runs",
    "speedup_of",
]
