"""Half an hour of small rounds with participants that join, leave and die: do the server's resources stay flat?

``python -m benchmarks soak --minutes 30``. ``churn`` has the events, ``health`` the samples, ``flatness`` the
criterion. The samples are kept as ``benchmarks/samples/soak.json``.
"""

from benchmarks.soak.case import MINUTES, run

__all__ = ["MINUTES", "run"]
