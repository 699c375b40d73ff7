"""``atoll demo``: a whole federation on one machine, from real processes, that cleans up after itself.

``data`` splits the digits, ``model`` makes the first weights, ``evaluator`` evaluates on the server, ``federation``
starts all processes with ``atoll.processes``.
"""
