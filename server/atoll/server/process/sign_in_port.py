"""The sign-in port, for operators with an identity provider: server-side TLS, and a token with each call."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import grpc.aio

from atoll.server.access.oidc import TokenVerifier
from atoll.server.access.oidc_provider import Keys, fetcher
from atoll.server.config.config import ServerConfig
from atoll.server.errors import LimitExceededError, SetupError
from atoll.server.ingest.coordinator_api import CoordinatorApi
from atoll.server.process.front import BEHIND, Front
from atoll.server.process.listeners import SIGN_IN_CONNECTIONS, Port, bind, make_server
from atoll.server.rpc.admission import Admission
from atoll.server.rpc.authentication import Authenticator
from atoll.server.rpc.sign_in import SignInService
from atoll.server.rpc.supervision import Supervision
from atoll.server.rpc.token_authentication import TokenAuthenticator
from atoll.text.installing import install_hint
from atoll.wire.v1.control_pb2_grpc import add_SignInServiceServicer_to_server


@dataclass(frozen=True)
class SignInPort:
    """A server that is bound but not started; the operators' services must still be added.

    Attributes:
        server: the gRPC server behind the front.
        front: accepts the connections.
        authenticator: identifies callers by their tokens.
        port: number of the port that the front listens on.
    """

    server: grpc.aio.Server
    front: Front
    authenticator: TokenAuthenticator
    port: int


def sign_in_crowded(address: str, held: int, most: int) -> LimitExceededError:
    """The error for an address that has the most connections to this port."""
    return LimitExceededError(
        "oidc.connections",
        f"{address} has {held} of the {most} connections to the port for signing in; its oldest is closed",
        retry_after_s=1.0,
    )


async def open_sign_in_port(
    config: ServerConfig,
    issuer: str,
    coordinator: CoordinatorApi,
    supervise: Callable[[Authenticator], Supervision],
    refused: Callable[[str], None],
    credentials: grpc.ServerCredentials,
    main_port: int,
) -> SignInPort:
    """Bind the port.

    Raises:
        SetupError: if the port cannot be opened, the provider's CA file cannot be read, or PyJWT is missing.
    """
    if importlib.util.find_spec("jwt") is None:
        raise SetupError("server.oidc", "[oidc] needs PyJWT, which is not installed", install_hint("oidc"))
    try:
        fetch = fetcher(config.oidc.ca)
    except OSError as error:
        raise SetupError(
            "server.oidc", f"oidc.ca = {config.oidc.ca}: {error}", "name a PEM file of certificates"
        ) from error
    verifier = TokenVerifier(config.oidc, Keys(issuer, fetch))
    front = Front(min(SIGN_IN_CONNECTIONS, config.limits.connections), refused, sign_in_crowded)
    authenticator = TokenAuthenticator(coordinator, Admission(config.limits), verifier, issuer, front.origin)
    server = make_server(
        Port.SIGN_IN,
        config.limits,
        refused,
        authenticator.enter,
        authenticator.connections,
        within=(supervise(authenticator),),
    )
    add_SignInServiceServicer_to_server(SignInService(config.oidc), server)
    authenticator.connections.port = bind(server, BEHIND, 0, credentials)
    wanted = config.port_after(main_port, 4, config.oidc.port)
    port = await front.bind(config.host, wanted, authenticator.connections.port)
    return SignInPort(server, front, authenticator, port)
