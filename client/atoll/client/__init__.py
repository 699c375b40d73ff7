"""The edge client SDK."""
