"""``atoll silo demo``: two silos and two edge clients train one language model on this machine, from real processes.

``shards`` deals out the standard library's text, ``jobs`` writes the job files, ``participant`` is what an edge client
runs, ``evaluator`` what the server judges by, ``sample`` lets the model write, ``operator`` is whoever types the
server's commands, ``federation`` puts them together. The server is a process like any other: nothing of it is
imported.
"""
