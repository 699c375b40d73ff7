"""Drives runs: connects the pure parts with clocks, disks and connections.

Start reading at ``coordinator`` (all runs, and the calls of ingest nodes), then ``driver`` (one run: events in, made
durable, effects out) and ``performer`` (the handler of each effect); ``process.server`` starts and stops them.
"""
