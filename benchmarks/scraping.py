"""Metrics of servers and aggregators, read from their pages."""

from __future__ import annotations

import urllib.request

_ANSWER_S = 60.0


def metric(address: str, name: str) -> float:
    """The sum of a metric over its labels.

    Args:
        address: host:port of the process's metrics.
        name: as on the page, with its suffix such as ``_total``.

    Raises:
        ValueError: if the page has no such metric.
    """
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=_ANSWER_S) as page:
        lines = [line for line in page.read().decode().splitlines() if not line.startswith("#")]
    found = [float(line.split()[-1]) for line in lines if line.split("{")[0].split()[0] == name]
    if not found:
        raise ValueError(f"http://{address}/metrics has no {name}")
    return sum(found)
