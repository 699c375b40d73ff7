"""The fields that the console's forms send."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException

from atoll.console.guard import session_of

if TYPE_CHECKING:
    from starlette.requests import Request

MAX_FORM_BYTES = 1 << 20
MAX_FIELDS = 20
TOKEN_FIELD = "form_token"  # noqa: S105 - the name of a field


async def form_of(request: Request) -> Mapping[str, str]:
    """The fields of a form that a page of this session sent; of a repeated name, the last value.

    Raises:
        HTTPException: 413 for one that is too large, 400 for one that is none, 403 without the session's token.
    """
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MAX_FORM_BYTES:
            raise HTTPException(413, f"a form has at most {MAX_FORM_BYTES} bytes")
    try:
        fields = dict(parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"))
    except ValueError as error:
        raise HTTPException(400, "the form cannot be read") from error
    expected = session_of(request).form_token
    if not secrets.compare_digest(fields.get(TOKEN_FIELD, "").encode(), expected.encode()):
        raise HTTPException(403, "the form is of another session: load the page again")
    return fields
