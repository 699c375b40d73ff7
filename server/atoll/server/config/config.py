"""The server's configuration: parsed once, validated whole, then frozen."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from atoll.server.config import DEFAULT_DATA
from atoll.server.config.check_in_settings import DEFAULT_CHECK_INS, CheckInSettings
from atoll.server.config.limits import DEFAULT_LIMITS, Limits
from atoll.server.config.oidc_settings import OidcSettings
from atoll.server.config.storage_settings import StorageSettings
from atoll.server.identity.host_name import advertised_name
from atoll.wire.loopback import is_loopback
from atoll.wire.pacing import LONGEST_PING_S, LONGEST_RETRY_S, PING_ANSWER_S, PING_S

_ANY = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound


class ServerConfig(BaseModel):
    """All settings of ``atoll server start``.

    Raises:
        ValueError: for settings that contradict each other; the message names them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: Path = Field(
        default=DEFAULT_DATA, description="Directory of the database, models, spool and certificate authority."
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=7400, ge=0, le=65535, description="Main port; 0 picks a free one.")
    enrol_port: int | None = Field(default=None, ge=0, le=65535, description="Enrolment port; default: main port + 1.")
    transfer_port: int | None = Field(
        default=None, ge=0, le=65535, description="Port of the ingest workers; default: main port + 2."
    )
    advertise: str | None = Field(default=None, min_length=1, description="Host name that participants connect to.")
    peer_host: str | None = Field(
        default=None,
        min_length=1,
        description="Host name or address at which the other servers at the same PostgreSQL database reach this one; "
        "default: `host` if it is one address, otherwise the address from which the database sees this server.",
    )
    workers: int = Field(default=1, ge=1, le=64, description="Processes that receive and fold updates.")
    insecure: bool = Field(default=False, description="No TLS and no certificates; loopback only.")
    certificate_lifetime_s: float = Field(
        default=86_400.0,
        ge=30.0,
        le=90 * 86_400.0,
        description="Seconds for which a participant's certificate is valid.",
    )
    renewal_grace_s: float = Field(
        default=14 * 86_400.0,
        ge=0.0,
        le=365 * 86_400.0,
        description="Seconds after its expiry in which a participant's certificate can still be renewed, for devices "
        "that were off. Revoked participants get no renewal, and neither do certificates older than one that their "
        "participant has used.",
    )
    silence_s: float = Field(
        default=3 * LONGEST_RETRY_S,
        ge=0.0,
        le=3600.0,
        description="Seconds that a participant may be disconnected before it counts as gone. Clients take up to "
        f"{LONGEST_RETRY_S:g} s to return, so do not set less than that.",
    )
    silo_silence_s: float = Field(
        default=60.0,
        ge=0.0,
        le=3600.0,
        description="The same for silos, which restart all ranks when one is lost and continue with the round.",
    )
    aggregator_silence_s: float = Field(
        default=60.0,
        ge=0.0,
        le=86_400.0,
        description="Seconds for which a round's sum waits for a disconnected aggregator that holds updates of the "
        "round, or until the round's deadline if that is later. After that, those updates are left out.",
    )
    ping_s: float = Field(
        default=PING_S,
        ge=PING_S,
        le=LONGEST_PING_S,
        description="Idle seconds on a participant's connection before the server sends a keepalive ping. Participants "
        "are told this value, and ping after 0.9 times as long. A lost connection is noticed at most "
        f"{PING_ANSWER_S:g} s later ([deployment](deployment.md#keepalive-pings)).",
    )
    evaluators: tuple[str, ...] = Field(default=(), description="NAME=MODULE:FUNCTION; may be given several times.")
    drain_s: float = Field(
        default=5.0,
        ge=0.0,
        le=600.0,
        description="Seconds that uploads and other open calls get to end when the server stops.",
    )
    keep_models: int = Field(
        default=3,
        ge=1,
        le=1_000_000,
        description="Number of released models to keep per running run, in addition to the first.",
    )
    storage: StorageSettings = Field(default=StorageSettings(), description="Retention, and the disk space left free.")
    metrics: bool = Field(default=True, description="Serve metrics and health on a separate port (plain HTTP).")
    metrics_host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address of the metrics port; everyone who can reach it can read the metrics.",
    )
    metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="Port of metrics and health; default: main port + 3."
    )
    share_models: bool = Field(
        default=False,
        description="Allow any participant to download any model whose name it knows. Otherwise only members of a "
        "round may, and only the model that the round begins with.",
    )
    check_in: CheckInSettings = Field(
        default=DEFAULT_CHECK_INS, description="How often participants without a stream check in, and at which rate."
    )
    oidc: OidcSettings = Field(default=OidcSettings(), description="Sign-in of operators through an identity provider.")
    limits: Limits = Field(default=DEFAULT_LIMITS, description="Limits on participants, addresses and messages.")

    _advertise_is_a_name = field_validator("advertise", "peer_host")(advertised_name)

    @model_validator(mode="after")
    def _insecure_only_on_loopback(self) -> ServerConfig:
        if self.insecure and not is_loopback(self.host):
            raise ValueError(
                f"--insecure with host {self.host!r}: plaintext is for loopback only; use 127.0.0.1, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _sign_in_needs_tls(self) -> ServerConfig:
        if self.insecure and self.oidc.issuer is not None:
            raise ValueError("--insecure with [oidc]: tokens never travel in plaintext; leave one of the two out")
        return self

    @property
    def doubts(self) -> tuple[str, ...]:
        """Warnings for the log about settings that are allowed but probably not intended."""
        found = []
        if self.silence_s <= LONGEST_RETRY_S:
            found.append(
                f"silence_s is {self.silence_s:g}, and a participant may take {LONGEST_RETRY_S:g} s to try a lost "
                f"connection again: set it above {LONGEST_RETRY_S:g}, or rounds go on without some that will return"
            )
        if self.advertise and is_loopback(self.host) and not is_loopback(self.advertise):
            found.append(
                f"participants are sent to {self.advertise}, and the server listens on {self.host}, which other "
                "machines do not reach: set host to 0.0.0.0 or an address of this machine"
            )
        return tuple(found)

    @property
    def advertised_host(self) -> str:
        """The host name in tokens and certificates."""
        if self.advertise:
            return self.advertise
        return "127.0.0.1" if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104 - compared, not bound

    @property
    def reached_at(self) -> str:
        """The address at which other servers reach this one; empty for the address that the database sees."""
        return self.peer_host or ("" if self.host in _ANY else self.host)

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """Host names and addresses in the server's certificate, without zones, which TLS does not compare."""
        names = {self.advertised_host, self.host, "localhost", "127.0.0.1"} - _ANY
        return tuple(sorted({name.partition("%")[0] for name in names}))

    def port_after(self, main_port: int, offset: int, wanted: int | None) -> int:
        """A secondary port: as given, or the main port plus ``offset``; a free one if the main port is a free one."""
        if wanted is not None:
            return wanted
        return 0 if self.port == 0 else main_port + offset
