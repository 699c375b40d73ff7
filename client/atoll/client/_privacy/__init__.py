"""A participant's own privacy: clipping, noise, operators' promises, and ledgers of the spent budget.

Nothing here needs torch. Users import ``atoll.client.local_privacy`` and ``atoll.client.opacus``.
"""
