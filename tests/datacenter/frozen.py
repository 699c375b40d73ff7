"""Imported last by the process from which ranks are forked: excludes all loaded objects from garbage collection.

Otherwise each rank's collector would visit them, and so copy memory that the ranks share. Before that it reads a job,
whose validators are built at their first use: otherwise each rank would build them.
"""

import gc

from atoll.datacenter.job import SiloJob
from tests.datacenter.training import SMALL

SiloJob.model_validate(SMALL)
gc.freeze()
