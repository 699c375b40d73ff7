"""File formats shared by clients, the server and silos."""
