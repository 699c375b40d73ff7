"""Test vectors of the wire contract: ``python -m tests.vectors`` writes ``protos/vectors``."""
