"""``atoll demo``: a whole federation on one machine, from real processes, that cleans up after itself.

``data`` splits the digits, ``model`` makes the first weights, ``evaluator`` judges on the server, ``federation`` puts
them together. Processes are ``atoll.processes``'s.
"""
