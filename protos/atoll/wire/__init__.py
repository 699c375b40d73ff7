"""The contract that every participant and the server must agree on bit for bit."""
