"""Job files: TOML in, one frozen and wholly valid ``SiloJob`` out. What fits the machines is ``mesh.validate``'s."""

from atoll.datacenter.job.silo_job import SiloJob, load_job

__all__ = ["SiloJob", "load_job"]
