"""S3 credentials from a shared credentials file, which obstore does not read."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.server.buckets.errors import BucketRefusedError

if TYPE_CHECKING:
    from obstore.store import S3Credential

_FRESH = timedelta(minutes=15)
"""Seconds after which the file is read again, since an operator or a mounted secret may have replaced it."""
_OTHERS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Environment variables from which obstore itself reads credentials."""


class SharedFile:
    """A profile of a shared credentials file (``aws configure`` writes one), read on demand."""

    def __init__(self, path: Path, profile: str) -> None:
        self._path, self._profile = path, profile

    def __call__(self) -> S3Credential:
        """Return the credentials in obstore's form.

        Raises:
            BucketRefusedError: if the file or the profile cannot be used; the message shows none of its values.
        """
        parsed = configparser.RawConfigParser()
        try:
            parsed.read_string(self._path.read_text(encoding="utf-8"))
            section = parsed[self._profile]
            key, secret = section["aws_access_key_id"], section["aws_secret_access_key"]
        except (OSError, ValueError, KeyError, configparser.Error) as error:
            raise BucketRefusedError(
                f"profile {self._profile!r} of the shared credentials file cannot be used ({type(error).__name__})",
                "give it aws_access_key_id and aws_secret_access_key, or choose a profile with $AWS_PROFILE",
            ) from None
        token = section.get("aws_session_token")
        return {
            "access_key_id": key,
            "secret_access_key": secret,
            "token": token,
            "expires_at": datetime.now(UTC) + _FRESH,
        }


def shared_file(environment: Mapping[str, str] = os.environ) -> SharedFile | None:
    """The shared credentials file to use; None if the environment gives credentials, or there is no file."""
    if any(environment.get(name) for name in _OTHERS):
        return None
    named = environment.get("AWS_SHARED_CREDENTIALS_FILE")
    path = Path(named or "~/.aws/credentials").expanduser()
    if not (named or path.exists()):
        return None
    return SharedFile(path, environment.get("AWS_PROFILE") or "default")
