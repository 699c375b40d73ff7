"""The daemon of a federation: rounds, sampling, aggregation, stores, and the RPC shell around them."""

__version__ = "0.1.0"
