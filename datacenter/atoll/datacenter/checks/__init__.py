"""Checks of a job before any process starts. Each message states the problem with its numbers and the remedy.

Read ``layout`` for whether the job fits a number of ranks, and ``start`` for whether it can start on this machine.
"""
