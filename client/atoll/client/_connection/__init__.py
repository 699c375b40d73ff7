"""The connection to the server: identity, address, and the meaning of failed calls."""
