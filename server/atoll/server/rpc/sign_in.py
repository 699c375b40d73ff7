"""SignInService: tells operators where and how to sign in."""

from __future__ import annotations

from atoll.server.config.oidc_settings import OidcSettings
from atoll.server.rpc.authentication import Context
from atoll.wire.v1 import control_pb2
from atoll.wire.v1.control_pb2_grpc import SignInServiceServicer


class SignInService(SignInServiceServicer):
    """Answers with the identity provider and Atoll's client id there; neither is secret."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings

    async def GetSignIn(self, request: control_pb2.GetSignInRequest, context: Context) -> control_pb2.GetSignInResponse:
        """Describe the provider."""
        found = self._settings
        return control_pb2.GetSignInResponse(
            issuer=found.issuer or "", client_id=found.client_id, scopes=found.scopes, token=found.token
        )
