"""The server's side of gateways: their sessions beside its own, their sums among its nodes'."""
