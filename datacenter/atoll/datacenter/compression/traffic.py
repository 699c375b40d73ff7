"""Bytes that a rank sends, by the algorithms that are best for large messages; ``plan`` and ``machine`` use the same.

===========  ==============================  ==============================
collective   message                         bytes sent by each of N ranks
===========  ==============================  ==============================
all-reduce   S on each rank                  2 (N - 1) / N · S
all-gather   S on each rank, N · S at last   (N - 1) · S
all-to-all   S on each rank, S / N to each   (N - 1) / N · S
===========  ==============================  ==============================
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """Counted since the hook was made.

    Attributes:
        ranks: that take part.
        sent_bytes: by this rank.
        plain_bytes: that this rank would have sent without a hook.
    """

    ranks: int
    sent_bytes: float = 0.0
    plain_bytes: float = 0.0

    def all_reduce(self, message_bytes: int) -> None:
        """Count one all-reduce."""
        self.sent_bytes += self._ring(message_bytes)

    def all_gather(self, message_bytes: int) -> None:
        """Count one all-gather."""
        self.sent_bytes += (self.ranks - 1) * message_bytes

    def all_to_all(self, message_bytes: int, kept_bytes: int) -> None:
        """Count one all-to-all of which a part stays here."""
        self.sent_bytes += message_bytes - kept_bytes

    def plain(self, gradient_bytes: int) -> None:
        """Count what a bucket would have cost as it is."""
        self.plain_bytes += self._ring(gradient_bytes)

    def _ring(self, message_bytes: int) -> float:
        return 2 * (self.ranks - 1) / self.ranks * message_bytes
