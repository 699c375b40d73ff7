"""The operators of a server, their credentials and roles, by calls to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from atoll.operator.errors import BadInputError
from atoll.server.control import Myself, OperatorCertificate, OperatorSummary, RevokedOperator, value_of, values_of
from atoll.server.identity import OPERATOR_LIFETIME_S, KeyWithRequest, OperatorCredential
from atoll.wire.v1 import control_pb2

if TYPE_CHECKING:
    from atoll.operator.calls import Calls
    from atoll.wire.v1.control_pb2_grpc import ControlServiceStub

_ROLES = {
    "viewer": control_pb2.OPERATOR_ROLE_VIEWER,
    "operator": control_pb2.OPERATOR_ROLE_OPERATOR,
    "privacy_officer": control_pb2.OPERATOR_ROLE_PRIVACY_OFFICER,
    "administrator": control_pb2.OPERATOR_ROLE_ADMINISTRATOR,
}
OperatorRoleName = Literal["viewer", "operator", "privacy_officer", "administrator"]


@dataclass(frozen=True)
class NewOperator:
    """A new operator's credential, with the only copy of its key, and its expiry (epoch seconds)."""

    credential: OperatorCredential
    expires_at: float


class ServerOperators:
    """Creates, lists and revokes operators, and changes their roles."""

    _calls: Calls
    _control: ControlServiceStub

    def make_operator(
        self,
        name: str,
        lifetime_s: float = OPERATOR_LIFETIME_S,
        *,
        role: OperatorRoleName | None = None,
        organisation: str = "",
    ) -> NewOperator:
        """Create a credential for an operator; under your own name it renews yours. The key is generated here.

        Args:
            name: of the operator.
            lifetime_s: validity of the credential in seconds, at most 90 days.
            role: of a new operator, in this connection's project or, without one, in all; None: ``operator``, or yours
                for your own name.
            organisation: the only one for whose participants and join tokens the role holds; empty: all.
        """
        made = KeyWithRequest.make()
        request = control_pb2.CreateOperatorRequest(
            name=name,
            csr_pem=made.csr_pem,
            lifetime_s=lifetime_s,
            role=control_pb2.OPERATOR_ROLE_UNSPECIFIED if role is None else _role_number(role),
            organisation=organisation,
        )
        found = value_of(OperatorCertificate, self._calls.call(self._control.CreateOperator, request))
        credential = OperatorCredential(
            name=name,
            address=self._calls.address,
            ca_certificate=found.ca_certificate_pem.decode(),
            certificate=found.certificate_pem.decode(),
            key=made.key_pem.decode(),
        )
        return NewOperator(credential, found.expires_at)

    def operators(self) -> tuple[OperatorSummary, ...]:
        """All operators, by name."""
        answer = self._calls.call(self._control.ListOperators, control_pb2.ListOperatorsRequest())
        return values_of(OperatorSummary, answer.operators)

    def set_operator_role(self, name: str, role: OperatorRoleName | None, *, organisation: str = "") -> OperatorSummary:
        """Change an operator's role in this connection's project or, without one, in all; effective from its next call.

        Args:
            name: of the operator.
            role: the role; None: none in this project any more.
            organisation: the only one for whose participants and join tokens the role holds; empty: all.
        """
        number = control_pb2.OPERATOR_ROLE_UNSPECIFIED if role is None else _role_number(role)
        request = control_pb2.SetOperatorRoleRequest(name=name, role=number, organisation=organisation)
        return value_of(OperatorSummary, self._calls.call(self._control.SetOperatorRole, request).operator)

    def whoami(self) -> Myself:
        """The identity that the server sees, and the actions that it allows."""
        return value_of(Myself, self._calls.call(self._control.WhoAmI, control_pb2.WhoAmIRequest()))

    def revoke_operator(self, name: str, reason: str = "") -> RevokedOperator:
        """Revoke an operator's access at once."""
        request = control_pb2.RevokeOperatorRequest(name=name, reason=reason)
        return value_of(RevokedOperator, self._calls.call(self._control.RevokeOperator, request))


def _role_number(role: str) -> control_pb2.OperatorRole.ValueType:
    if role not in _ROLES:
        raise BadInputError(f"role = {role!r}; allowed are {', '.join(_ROLES)}")
    return _ROLES[role]
