"""The aggregator's configuration: parsed once, validated whole, then frozen."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from atoll.server.config.limits import DEFAULT_LIMITS, Limits
from atoll.server.config.storage_settings import StorageSettings
from atoll.server.disk.space import Room
from atoll.server.identity.host_name import advertised_name

DEFAULT_DATA = Path("atoll-aggregator")


class AggregatorConfig(BaseModel):
    """All settings of ``atoll aggregator start``.

    Raises:
        ValueError: for an invalid value, which the message names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: Path = Field(default=DEFAULT_DATA, description="Directory of its credential, models and uploads.")
    upstream: str | None = Field(
        default=None,
        description="The server's main port, HOST:PORT; by default the address that the server gave at enrolment.",
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=7410, ge=0, le=65535, description="Main port; 0 picks a free one.")
    enrol_port: int | None = Field(default=None, ge=0, le=65535, description="Enrolment port; default: main port + 1.")
    advertise: str | None = Field(
        default=None,
        min_length=1,
        description="Host name that participants connect to; default: the first one in its join token.",
    )
    drain_s: float = Field(default=5.0, ge=0.0, le=600.0, description="Seconds that open uploads and calls get to end.")
    keep_models: int = Field(default=8, ge=1, le=10_000, description="Number of models kept on disk for participants.")
    reserve_mib: int = Field(
        default=256, ge=0, le=1 << 20, description="MiB of disk space to leave free; with less, uploads are refused."
    )
    metrics: bool = Field(default=True, description="Serve metrics and health on a separate port (plain HTTP).")
    metrics_host: str = Field(default="127.0.0.1", min_length=1, description="Address of the metrics port.")
    metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="Port of metrics and health; default: main port + 3."
    )
    limits: Limits = Field(default=DEFAULT_LIMITS, description="Limits on participants, addresses and messages.")

    _advertise_is_a_name = field_validator("advertise")(advertised_name)

    @field_validator("upstream")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        host, _, port = value.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535:
            raise ValueError("expected HOST:PORT, such as server.example.org:7400")
        return value

    @property
    def room(self) -> Room:
        """The free-space check of the data directory's disk."""
        return StorageSettings(reserve_mib=self.reserve_mib).room(self.data)

    def port_after(self, main_port: int, offset: int, wanted: int | None) -> int:
        """A secondary port: as given, or the main port plus ``offset``; a free one if the main port is a free one."""
        if wanted is not None:
            return wanted
        return 0 if self.port == 0 else main_port + offset
