"""What a job learns from: step → sequences is a pure function, so any rank of any world takes its share of it.

Read ``batches`` first: a ``Source`` says which rows a step has, ``Batches`` counts steps, ``loader.Loader`` prefetches.
Underneath, ``packing`` cuts documents into sequences, ``permutation`` shuffles them, and ``stdlib``, ``token_file``,
``text`` with ``stream``, and ``digits`` are where data comes from. ``opening`` puts them together for a job file.
"""

from atoll.datacenter.data.agreement import largest_over
from atoll.datacenter.data.batches import Batch, Batches, Source, Step
from atoll.datacenter.data.loader import Loader
from atoll.datacenter.data.opening import open_batches, open_job_batches

__all__ = ["Batch", "Batches", "Loader", "Source", "Step", "largest_over", "open_batches", "open_job_batches"]
