"""The gateway's side: one link to the server, over which everything goes that its participants need of it."""
