"""The small files in a participant's state directory."""
