"""Pipeline parallelism: blocks divided into stages, micro-batches sent through them. Read ``deal``, then ``passes``."""
