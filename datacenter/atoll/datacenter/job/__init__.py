"""Job files: TOML in, one frozen and fully validated ``SiloJob`` out. ``checks.layout`` fits it to the machines."""

from atoll.datacenter.job.silo_job import SiloJob, load_job

__all__ = ["SiloJob", "load_job"]
