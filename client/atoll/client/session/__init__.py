"""The participant's session: checked in, doing what the server asks, until told to end."""

from atoll.client.session.session import Session, Summary

__all__ = ["Session", "Summary"]
