"""The name of an upload: run, attempt at a round, participant and id, which determine its folder."""

from __future__ import annotations

import re
from dataclasses import dataclass

from atoll.server.errors import InvalidRequestError
from atoll.server.ingest.bucket_uploads import CommittedKey
from atoll.server.ingest.committed import UPLOAD_ID_CHARS
from atoll.server.ingest.upload_quota import QuotaKey
from atoll.wire.chunks import UploadKey

_UPLOAD_ID = re.compile(rf"[0-9a-f]{{{UPLOAD_ID_CHARS}}}")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


@dataclass(frozen=True, slots=True)
class UploadRef:
    """One upload of one participant for one attempt at a round. Every part is used as a folder name.

    Raises:
        InvalidRequestError: for a part that cannot be a folder name.
    """

    run: str
    round: int
    attempt: int
    participant: str
    upload_id: str

    def __post_init__(self) -> None:
        check_name(self.run)
        check_name(self.participant)
        if not _UPLOAD_ID.fullmatch(self.upload_id):
            raise InvalidRequestError(
                "upload.id",
                f"upload_id {self.upload_id[:40]!r}: needs {UPLOAD_ID_CHARS} hexadecimal digits",
                "name each upload with 16 random bytes in hex",
            )

    @classmethod
    def of(cls, key: UploadKey, participant: str) -> UploadRef:
        """The reference for a key from the wire.

        Raises:
            InvalidRequestError: for a part that cannot be a folder name.
        """
        return cls(key.run, key.round, key.attempt, participant, key.upload_id)

    @property
    def quota_key(self) -> QuotaKey:
        """The key of the participant's quota for the attempt."""
        return QuotaKey(self.run, self.round, self.attempt, self.participant)

    def committed_key(self, digest: str) -> CommittedKey:
        """The key of the committed update with that digest."""
        return CommittedKey(self.run, self.round, self.attempt, self.participant, digest)


def is_name(text: str) -> bool:
    """Whether a text can be the name of a run or participant."""
    return _NAME.fullmatch(text) is not None


def check_name(name: str) -> str:
    """Return the name of a run or participant, after checking that it can be a folder's name.

    Raises:
        InvalidRequestError: if it cannot name a folder.
    """
    if not is_name(name):
        raise InvalidRequestError("spool.name", f"{name[:80]!r} cannot name a run or participant")
    return name
