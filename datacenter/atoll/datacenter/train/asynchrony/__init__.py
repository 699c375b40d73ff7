"""Data parallelism without synchronous steps: a parameter server with bounded staleness, and Hogwild."""

from atoll.datacenter.train.asynchrony.run import train_asynchronously

__all__ = ["train_asynchronously"]
