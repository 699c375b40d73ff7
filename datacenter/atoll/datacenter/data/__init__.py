"""Training data: the rows of a step are a pure function of its number, so any rank of any world can take its share.

Start with ``batches``: a ``Source`` provides the rows of a step, ``Batches`` counts steps, ``loader.Loader``
prefetches. Below it, ``packing`` cuts documents into sequences and ``permutation`` shuffles them. Data comes from
``stdlib``, ``token_file``, ``text`` with ``stream``, ``digits``, or the user's function (``own``). ``opening``
assembles them for a job file.
"""

from atoll.datacenter.data.batches import Batch, Batches, Source, Step
from atoll.datacenter.data.held_out import HeldOut, open_held_out
from atoll.datacenter.data.loader import Loader, largest_over
from atoll.datacenter.data.opening import open_batches, open_job_batches
from atoll.datacenter.data.packing import Rows, Sequences

__all__ = [
    "Batch",
    "Batches",
    "HeldOut",
    "Loader",
    "Rows",
    "Sequences",
    "Source",
    "Step",
    "largest_over",
    "open_batches",
    "open_held_out",
    "open_job_batches",
]
