"""The gateway's side: one link to the server, which carries all traffic of its participants."""
