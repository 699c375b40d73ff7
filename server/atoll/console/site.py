"""The address at which the console is reached, and the origins that requests may name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from atoll.operator.errors import BadInputError
from atoll.wire.loopback import is_loopback

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_PORT = 7410
_ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - named to be refused without an origin
_STANDARD = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Listening:
    """Where to listen, from the command line.

    Attributes:
        host: address of the listening socket.
        port: its port; 0: any free one.
        certificate: TLS certificate, PEM; None: plain HTTP.
        key: its key, PEM.
        plaintext: plain HTTP is wanted even if ``host`` is not a loopback address.
        origin: ``SCHEME://HOST[:PORT]`` that browsers have in their address bar; empty: as ``host`` and ``port`` say.

    Raises:
        BadInputError: for values that exclude each other, or that would send the session in plain text unasked.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    certificate: Path | None = None
    key: Path | None = None
    plaintext: bool = False
    origin: str = ""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise BadInputError("--tls-certificate and --tls-key belong together", "give both, or neither")
        if self.certificate is not None and self.plaintext:
            raise BadInputError("--plaintext and --tls-certificate exclude each other", "leave one of them out")
        if not is_loopback(self.host) and self.certificate is None and not self.plaintext:
            raise BadInputError(
                f"--host {self.host} is not a loopback address, and plain HTTP would show the session to the network",
                "give --tls-certificate and --tls-key, or --plaintext behind a proxy that does TLS",
            )
        if self.host in _ANY_ADDRESS and not self.origin:
            raise BadInputError(
                f"--host {self.host} listens on every address, and requests must name one origin",
                "add --origin, such as https://console.example:7410",
            )
        if self.origin:
            _require_origin(self.origin)


@dataclass(frozen=True)
class Site:
    """Addresses under which a listening console is reached.

    Attributes:
        origin: the origin of links, as browsers write it.
        origins: all origins that requests may name.
    """

    origin: str
    origins: frozenset[str]

    @classmethod
    def of(cls, listening: Listening, port: int) -> Site:
        """The site of a console that listens on ``port``."""
        if listening.origin:
            return cls(listening.origin, frozenset({listening.origin}))
        scheme = "http" if listening.certificate is None else "https"
        names = [listening.host]
        if is_loopback(listening.host):
            names += [name for name in ("127.0.0.1", "localhost", "::1") if name != listening.host]
        found = [_origin(scheme, name, port) for name in names]
        return cls(found[0], frozenset(found))

    @property
    def hosts(self) -> frozenset[str]:
        """Values of the Host header that requests may have."""
        return frozenset(urlsplit(one).netloc for one in self.origins)

    @property
    def secure(self) -> bool:
        """Whether browsers reach the console over TLS."""
        return self.origin.startswith("https:")

    @property
    def cookie(self) -> str:
        """The name of the session's cookie. Cookies are shared by all ports of a host, so it has the port."""
        parts = urlsplit(self.origin)
        name = f"atoll-console-{parts.port or _STANDARD[parts.scheme]}"
        return f"__Host-{name}" if self.secure else name


def _origin(scheme: str, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}" if port == _STANDARD[scheme] else f"{scheme}://{shown}:{port}"


def _require_origin(text: str) -> None:
    """Refuse a text that no browser sends as Origin.

    Raises:
        BadInputError: for anything but SCHEME://HOST[:PORT], in lower case and without the scheme's own port.
    """
    parts = urlsplit(text)
    try:
        expected = _origin(parts.scheme, parts.hostname or "", parts.port or _STANDARD.get(parts.scheme, 0))
    except (KeyError, ValueError):
        expected = ""
    if not parts.hostname or text != expected:
        raise BadInputError(
            f"--origin {text!r}: expected SCHEME://HOST[:PORT] as browsers write it",
            "for example https://console.example or http://localhost:9000",
        )
