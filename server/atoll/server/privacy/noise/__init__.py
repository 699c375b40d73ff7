"""Discrete Gaussian noise: ``DiscreteGaussian(sigma).draw(out, key, start)``; docs/privacy/noise.md explains how."""

from atoll.server.privacy.noise.discrete import STATISTICAL_DISTANCE, DiscreteGaussian, sigma_for, warm

__all__ = ["STATISTICAL_DISTANCE", "DiscreteGaussian", "sigma_for", "warm"]
