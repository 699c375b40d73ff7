"""What drives runs: holds the pure parts together and talks to clocks, disks and connections.

Start reading at ``coordinator`` (all runs, and the desk that ingest nodes ask), then ``driver`` (one run: events in,
made durable, effects out) and ``performer`` (what each effect does); ``process.server`` starts and stops them.
"""
