"""The server's side of gateways: adds their sessions to its own, and their sums to those of its nodes."""
