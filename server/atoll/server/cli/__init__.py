"""The operator's side of the command line: ``token``, ``participants``, ``run``, ``doctor``.

Each is a click command registered under the entry points ``atoll.commands``; ``connection`` holds the options they
share, ``client`` the typed calls, ``output`` tables and JSON, ``errors`` the exit codes.
"""
