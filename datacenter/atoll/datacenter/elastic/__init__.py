"""Fault tolerance: ranks are started, watched, and restarted from the last checkpoint.

Read ``launch`` for what a command starts, ``agent`` for what happens when a rank is lost, ``watch`` for what each rank
reports, and ``rank`` for how its errors are passed on.
"""
