"""Gradient compression between replicas: DDP communication hooks, most of them lossy with error feedback."""

from atoll.datacenter.compression.registry import attach_hook, hook_of

__all__ = ["attach_hook", "hook_of"]
