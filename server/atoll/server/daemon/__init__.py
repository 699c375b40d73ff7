"""The daemon: what holds the pure parts together and talks to clocks, disks and connections.

Start reading at ``coordinator`` (all runs, and the desk that ingest nodes ask), then ``driver`` (one run: events in,
made durable, effects out), ``performer`` (what each effect does) and ``server`` (listeners, start and stop).
"""
