"""Does a client speak the wire contract? ``python -m tests.conformance --help``."""
