"""Text that users read: figures, installation hints, and other parties' text made printable."""
