"""What the server tells of itself: Prometheus metrics, health, log context, traces.

Each process counts into a registry of its own (``node``); the coordinator adds what it knows of runs (``rounds``),
asks its workers for theirs, looks at queues and disks when it is asked (``gauges``), and serves all of it on a port
apart (``endpoint``). A chunk costs an addition and nothing more, and no label names a run or a participant.
"""
