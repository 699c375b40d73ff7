"""The console: a server's runs and participants in a browser, as a local web application of the operator.

It is built on ``atoll.operator`` and calls the server with the operator's credential, so the server itself has no web
port. ``atoll console`` starts it; docs/console.md shows it, docs/decisions/0037-console.md says why it is built so.
Needs the extra ``console``.
"""
