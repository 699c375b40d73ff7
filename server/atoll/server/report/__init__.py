"""The report of a run: ``render`` makes one self-contained HTML page of what the control API says.

Read ``summary`` for the figures in words, ``figures`` for the plots; loading it loads matplotlib.
"""

from atoll.server.report.render import render

__all__ = ["render"]
