"""Staying alive: ranks are started, watched, and started again from the last checkpoint.

Read ``launch`` for what a command starts, ``agent`` for what happens when a rank is lost, ``watch`` for what each rank
tells of itself, ``rank`` for how its errors end.
"""
