"""A silo's training job: many GPUs on PyTorch's distributed stack, acting as one participant of a federation.

Start with ``job`` for the settings of a job file, ``mesh.dims`` for the names of the mesh axes, ``parallel.apply`` for
the order in which a model is cut, and ``train.trainer`` for the loop.
"""
