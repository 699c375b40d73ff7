"""Text for people: figures, installation hints, and other parties' text made printable."""
