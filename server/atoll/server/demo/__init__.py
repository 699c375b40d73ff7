"""``atoll demo``: a whole federation on one machine, from real processes, that cleans up after itself.

``data`` splits the digits, ``model`` makes the first weights, ``evaluator`` judges on the server, ``processes`` starts
and ends the processes, ``federation`` puts them together.
"""
