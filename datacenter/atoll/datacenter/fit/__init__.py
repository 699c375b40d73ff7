"""Train a module or a model of ``transformers`` on a plain dataset, from a script: ``fit``.

::

    from atoll.datacenter.fit import fit

    fit(module, dataset, steps=500, batch=64)                            # python train.py
    fit("Qwen/Qwen3-0.6B", dataset, steps=500, batch=64, out="tuned")    # torchrun --nproc-per-node 8 train.py

It builds a silo job with the default settings and chooses its layout. A job file can express the same: ``model.kind``
or ``model.weights`` names the model, and ``data.source`` a function that returns the dataset.
"""

from atoll.datacenter.fit.jobs import Layout
from atoll.datacenter.fit.training import fit

__all__ = ["Layout", "fit"]
