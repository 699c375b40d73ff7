"""A participant's own privacy: clipping, noise, promises of operators, and the ledgers of what has been spent.

Nothing here needs torch. Users import ``atoll.client.local_privacy`` and ``atoll.client.opacus``.
"""
