"""What a participant does for its own privacy: demands, clipping, noise of its own, and a ledger of what it has spent.

Nothing here needs torch. ``atoll.client.randomise`` and ``atoll.client.opacus`` are the parts to be used directly.
"""
