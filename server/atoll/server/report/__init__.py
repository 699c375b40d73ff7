"""The report of a run: ``render`` makes one self-contained HTML page from the answers of the control API.

Read ``summary`` for the figures in words, and ``figures`` for the plots; importing the latter loads matplotlib.
"""

from atoll.server.report.render import render

__all__ = ["render"]
