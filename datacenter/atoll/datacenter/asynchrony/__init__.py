"""Data parallel without waiting for everybody: a parameter server with bounded staleness, and Hogwild."""

from atoll.datacenter.asynchrony.run import train_asynchronously

__all__ = ["train_asynchronously"]
