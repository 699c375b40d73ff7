"""The operators' commands: ``server``, ``run``, ``token``, ``participants``, ``operator``, ``privacy`` and others.

Each is a click command registered under the entry points ``atoll.commands``; ``connection`` holds the options they
share, ``client`` the typed calls, ``output`` tables and JSON, ``errors`` the exit codes.
"""
