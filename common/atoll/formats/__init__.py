"""File formats that clients, the server and silos share."""
