"""The client's log, and traces of its rounds."""
