"""The join tokens of a server, by calls to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from atoll.operator.errors import BadInputError, require_count
from atoll.server.control import NewTokens, TokenSummary, value_of, values_of
from atoll.wire.v1 import control_pb2, enrolment_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from atoll.operator.calls import Calls
    from atoll.wire.v1.control_pb2_grpc import ControlServiceStub

DAY_S = 86_400.0
_KINDS = {
    "edge": enrolment_pb2.PARTICIPANT_KIND_EDGE,
    "silo": enrolment_pb2.PARTICIPANT_KIND_SILO,
    "aggregator": enrolment_pb2.PARTICIPANT_KIND_AGGREGATOR,
}


class ServerTokens:
    """Creates, lists and voids join tokens."""

    _calls: Calls
    _control: ControlServiceStub

    def make_tokens(
        self,
        count: int = 1,
        *,
        organisation: str = "default",
        kind: Literal["edge", "silo", "aggregator"] = "edge",
        lifetime_s: float = DAY_S,
        hosts: Sequence[str] = (),
        through: str = "",
    ) -> NewTokens:
        """Create one-time join tokens: each admits one participant or aggregator. The server cannot show them again.

        Args:
            count: number of tokens.
            organisation: of their holders.
            kind: of their holders.
            lifetime_s: seconds for which they are valid.
            hosts: for an aggregator: host names and IP addresses to which its participants connect.
            through: id or organisation of the participants' aggregator, which must be connected; empty: they connect to
                the server.
        """
        require_count("count", count)
        if kind not in _KINDS:
            raise BadInputError(f"kind = {kind!r}; allowed are {' and '.join(_KINDS)}")
        request = control_pb2.CreateTokenRequest(
            organisation=organisation,
            kind=_KINDS[kind],
            lifetime_s=lifetime_s,
            count=count,
            hosts=hosts,
            through=through,
        )
        return value_of(NewTokens, self._calls.call(self._control.CreateToken, request))

    def tokens(self, *, unused: bool = False) -> Iterator[TokenSummary]:
        """All join tokens, or the unused ones, the newest first, without their secrets; page by page."""
        request = control_pb2.ListTokensRequest(unused=unused)
        for answer in self._calls.pages(self._control.ListTokens, request):
            yield from values_of(TokenSummary, answer.tokens)

    def void_tokens(self, token_ids: Sequence[str] = (), *, created_by: str = "") -> int:
        """Void unused join tokens, which then admit no one. Participants that used theirs stay.

        Args:
            token_ids: of the tokens, as ``tokens`` lists them.
            created_by: the operator whose tokens are all voided; instead of ``token_ids``.

        Returns:
            The number of tokens that were still valid; the others were used or expired.
        """
        request = control_pb2.VoidTokensRequest(token_ids=token_ids, created_by=created_by)
        return self._calls.call(self._control.VoidTokens, request).voided
