"""Pipeline parallel: blocks cut into stages, micro-batches sent through them. Read ``deal``, then ``passes``."""
