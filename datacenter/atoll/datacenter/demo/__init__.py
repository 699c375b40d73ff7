"""``atoll silo demo``: two silos and two edge clients train one language model on this machine, from real processes.

``shards`` divides the standard library's text, ``jobs`` writes the job files, ``participant`` is the edge client's
program, ``evaluator`` evaluates models on the server, ``sample`` generates text, ``operator`` runs the server's
commands, and ``federation`` combines them. The server is a separate process; none of its modules is imported.
"""
