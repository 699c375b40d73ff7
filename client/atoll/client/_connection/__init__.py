"""The connection to the server: who this is, where it is, and what a failed call means."""
