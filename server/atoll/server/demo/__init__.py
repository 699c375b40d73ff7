"""``atoll demo``: a whole federation of real processes on one machine, which cleans up after itself.

``data`` splits the digits, ``model`` makes the first weights, ``evaluator`` evaluates on the server, ``federation``
starts all processes with ``atoll.processes``.
"""
