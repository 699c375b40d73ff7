"""Half an hour of small rounds with participants that come, go and die: does the server stay as it is?

``python -m benchmarks soak --minutes 30``. ``churn`` is what happens to it, ``health`` what is sampled,
``flatness`` how it is judged. The samples are kept as ``benchmarks/samples/soak.json``.
"""

from benchmarks.soak.case import MINUTES, run

__all__ = ["MINUTES", "run"]
