"""The server as operating-system processes: listeners, workers, start and stop. Start reading at ``server``."""
