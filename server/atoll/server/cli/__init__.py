"""The operators' commands: ``server``, ``run``, ``token``, ``participants``, ``operator``, ``privacy`` and others.

Each is a click command registered under the entry point group ``atoll.commands``. ``connection`` has their shared
options, ``output`` tables and JSON, and ``errors`` the exit codes.
"""
