"""One silo's training job: many GPUs on PyTorch's own distributed stack, acting as one participant.

Read ``job`` for what a job file can say, ``mesh.dims`` for the words of the mesh, ``parallel.apply`` for the order in
which a model is cut, ``train.trainer`` for the loop.
"""
