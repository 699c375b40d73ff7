"""Names that the server gives out or accepts."""

from __future__ import annotations

import base64
import re
import secrets
from enum import StrEnum

from atoll.server.identity.errors import NameFormatError

_RANDOM_CHARS = 12  # base32: 60 bits
_PARTICIPANT = re.compile(r"p[a-z2-7]{12}")
_SERVER = re.compile(r"s[a-z2-7]{12}")
_ORGANISATION = re.compile(r"[a-z0-9-]{1,63}")
_PROJECT = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
_OPERATOR = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


DEFAULT_PROJECT = "default"
"""The project of everything that names no project; it always exists."""


class ParticipantKind(StrEnum):
    """The kind of an enrolled party: one edge process, a datacenter behind one identity, or an aggregator."""

    EDGE = "edge"
    SILO = "silo"
    AGGREGATOR = "aggregator"


def new_participant_id() -> str:
    """A new participant id: ``p`` and 12 lower-case base32 characters."""
    return "p" + _random_text()


def new_run_id() -> str:
    """A new run id: ``r`` and 12 lower-case base32 characters."""
    return "r" + _random_text()


def new_token_id() -> str:
    """A new id of a join token: ``t`` and 12 lower-case base32 characters."""
    return "t" + _random_text()


def new_server_id() -> str:
    """A new id of a server process: ``s`` and 12 lower-case base32 characters."""
    return "s" + _random_text()


def check_server_id(text: str) -> str:
    """Return ``text`` if it has the form of a server's id.

    Raises:
        NameFormatError: if it does not.
    """
    return _check(_SERVER, text, "server id", "s and 12 characters a-z, 2-7")


def check_participant_id(text: str) -> str:
    """Return ``text`` if it has the form of a participant id.

    Raises:
        NameFormatError: if it does not.
    """
    return _check(_PARTICIPANT, text, "participant id", "p and 12 characters a-z, 2-7")


def check_organisation(text: str) -> str:
    """Return ``text`` if it is a valid organisation name.

    Raises:
        NameFormatError: if it is not.
    """
    return _check(_ORGANISATION, text, "organisation", "1 to 63 characters a-z, 0-9 and -")


def check_project(text: str) -> str:
    """Return ``text`` if it is a valid project name.

    Raises:
        NameFormatError: if it is not.
    """
    return _check(_PROJECT, text, "project", "1 to 31 characters a-z, 0-9 and -, the first a letter or digit")


def check_operator(text: str) -> str:
    """Return ``text`` if it is a valid operator name.

    Raises:
        NameFormatError: if it is not.
    """
    return _check(_OPERATOR, text, "operator name", "1 to 63 characters a-z, 0-9, . _ -, the first a letter or digit")


def _check(pattern: re.Pattern[str], text: str, what: str, allowed: str) -> str:
    if not pattern.fullmatch(text):
        raise NameFormatError(f"{what} {text[:80]!r}: expected {allowed}")
    return text


def _random_text() -> str:
    return base64.b32encode(secrets.token_bytes(8))[:_RANDOM_CHARS].decode("ascii").lower()
