"""Gateways: processes that serve participants on behalf of the server that drives the runs (docs/aggregators.md).

A gateway holds its participants' check-in streams, receives and folds their updates, and sends the server one exact
partial sum for each round. ``host`` is the server's side, ``site`` the gateway's. Neither depends on how the gateway
got its certificates.
"""
