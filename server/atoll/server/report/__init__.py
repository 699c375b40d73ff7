"""The report of a run: ``render`` makes one self-contained HTML page from the answers of the control API.

Read ``summary`` for the figures in words, ``figures`` for the plots; loading it loads matplotlib.
"""

from atoll.server.report.render import render

__all__ = ["render"]
