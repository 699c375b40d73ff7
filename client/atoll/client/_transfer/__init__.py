"""Download models and upload updates in verified chunks; both can be resumed."""
