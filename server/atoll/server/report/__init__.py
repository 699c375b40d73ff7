"""The report of a run: ``render`` makes one self-contained HTML page of what the control API says.

Read ``curves`` for which value belongs to which model, ``summary`` for the figures in words, ``figures`` for the plots.
"""

from atoll.server.report.render import render

__all__ = ["render"]
