"""Telemetry of the server: Prometheus metrics, health, log context, traces.

Each process counts into its own registry (``node``). The coordinator adds metrics of runs (``rounds``), collects its
workers' metrics, measures queues and disks on request (``gauges``), and serves all metrics on a separate port
(``endpoint``). A chunk costs one addition, and no label names a run or a participant.
"""
