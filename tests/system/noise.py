"""Bytes that strangers send to an open port: random bytes, other protocols, broken TLS, half a greeting, nothing."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

_HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: none\r\n\r\n"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HELLO = bytes.fromhex("160301008d010000890303")
_ANSWER_S = 0.2
_HELD = 20


def noises(rng: random.Random) -> list[bytes]:
    """One of each kind."""
    garbage = rng.randbytes(rng.randint(1, 4000))
    frame = rng.randbytes(3) + bytes([rng.randint(0, 12)]) + rng.randbytes(5)
    return [garbage, _HTTP, _HTTP[:9], _HELLO + garbage, _HELLO, _PREFACE, _PREFACE + frame * 20 + garbage, b""]


class Noise:
    """Threads that connect to ports again and again; ``made`` counts the connections to each."""

    def __init__(self, ports: Sequence[int], seed: int) -> None:
        self.made: Counter[int] = Counter()
        self._more = threading.Condition()
        self._over = threading.Event()
        self._ports = tuple(ports)
        self._threads = [threading.Thread(target=self._at, args=(port, random.Random(seed + port))) for port in ports]
        for thread in self._threads:
            thread.start()

    def heard(self, times: int, timeout_s: float) -> bool:
        """Wait until each port has had this many connections; False if that takes longer than ``timeout_s``."""
        with self._more:
            return self._more.wait_for(lambda: min(self.made[port] for port in self._ports) >= times, timeout_s)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _at(self, port: int, rng: random.Random) -> None:
        held: list[socket.socket] = []
        while not self._over.is_set():
            with contextlib.suppress(OSError):
                held.append(self._say(port, rng.choice(noises(rng))))
                with self._more:
                    self.made[port] += 1
                    self._more.notify_all()
            while len(held) > _HELD:  # some stay open in the middle of what they said
                held.pop(rng.randrange(len(held))).close()
            self._over.wait(0.02)
        for connection in held:
            connection.close()

    def _say(self, port: int, words: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S)
        connection.sendall(words)
        with contextlib.suppress(TimeoutError):
            connection.recv(1 << 16)
        return connection


@contextlib.contextmanager
def noise(ports: Sequence[int], seed: int) -> Iterator[Noise]:
    """Make noise at these ports inside the context."""
    made = Noise(ports, seed)
    try:
        yield made
    finally:
        made.stop()
