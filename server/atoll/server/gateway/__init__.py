"""Gateways: places other than the driver of a run at which participants are served (docs/aggregators.md).

A gateway holds its participants' check-in streams, receives and folds their updates, and hands the server one exact
partial sum for each round. ``host`` is the server's side, ``site`` the gateway's. Neither knows how the gateway got its
certificates.
"""
