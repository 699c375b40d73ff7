"""Count the bytes that a rank sends, with the algorithms that are best for large messages, as ``plan`` does.

===========  ==============================  ==============================
collective   message                         bytes sent by each of N ranks
===========  ==============================  ==============================
all-reduce   S on each rank                  2 (N - 1) / N · S
all-gather   S on each rank, N · S in all    (N - 1) · S
all-to-all   S on each rank, S / N to each   (N - 1) / N · S
===========  ==============================  ==============================
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """Bytes counted since the hook was created.

    Attributes:
        ranks: ranks that take part.
        sent_bytes: bytes sent by this rank.
        plain_bytes: bytes that this rank would have sent without a hook.
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
        """Count one all-to-all, of which ``kept_bytes`` remain on this rank."""
        self.sent_bytes += message_bytes - kept_bytes

    def plain(self, gradient_bytes: int) -> None:
        """Count what a bucket would have cost uncompressed."""
        self.plain_bytes += self._ring(gradient_bytes)

    def _ring(self, message_bytes: int) -> float:
        return 2 * (self.ranks - 1) / self.ranks * message_bytes
