"""Closes connections to a port of this process by their sockets, because gRPC for Python cannot.

gRPC keeps a message that its reader does not take until the connection is closed: neither cancelling the write nor
aborting the call frees it. The connection's socket is therefore looked up among this process's open files and shut
down. gRPC then sees the end of the stream and frees everything that belongs to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import stat
import weakref
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from atoll.server.rpc.peers import Address, address_of, ip_address

log = logging.getLogger(__name__)

_OPEN_FILES = "/dev/fd"
_RETRY_S = 1.0
_GONE = {errno.EBADF}
"""Error codes if the descriptor was closed after it was listed."""
_FULL = {errno.EMFILE, errno.ENFILE}
"""Error codes if no more files can be opened."""
_MOST_FILES = 1 << 20
"""Number of descriptors to try if open files cannot be listed and their limit is very high or absent."""


class Connections:
    """Closes callers' connections to one port. Only the event loop uses it.

    One search of the open files serves all peers that were requested since the last search. It works even if the
    process can open no more files, since the connections to be closed may have used them up. A failed search is logged
    and repeated.

    Attributes:
        port: number of the port; None until it is bound, and until then nothing is closed.

    Raises:
        OSError: if no descriptor can be reserved.
    """

    def __init__(self) -> None:
        self.port: int | None = None
        self._wanted: set[Address] = set()
        self._closing: asyncio.Task[None] | None = None
        self._spare = SpareDescriptor()

    def close(self, peer: str) -> None:
        """Schedule the closing of the connection with a peer, given as gRPC names it."""
        address = address_of(peer)
        if address is None or self.port is None:
            return
        self._wanted.add(address)
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close_wanted(self.port))

    async def _close_wanted(self, port: int) -> None:
        try:
            while self._wanted:
                wanted, self._wanted = self._wanted, set()
                try:
                    await asyncio.get_running_loop().run_in_executor(None, shut_down, wanted, port, self._spare)
                except OSError as error:
                    log.warning("%d unread connections cannot be closed, tried again: %s", len(wanted), error)
                    self._wanted |= wanted
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._closing = None


class SpareDescriptor:
    """A reserved descriptor, for duplicating others even if the process may open no more files.

    Raises:
        OSError: if it cannot be opened.
    """

    def __init__(self) -> None:
        self._idle = os.open(os.devnull, os.O_RDONLY)
        self._own = [os.dup(self._idle)]
        weakref.finalize(self, _close_all, self._own, self._idle)

    @contextlib.contextmanager
    def duplicate(self, descriptor: int) -> Iterator[socket.socket | None]:
        """Duplicate a descriptor's socket to the reserved descriptor, which keeps referring to that socket.

        Yields None if the descriptor is no longer a socket. If it is now a file, the reserved descriptor stays open
        permanently and another is reserved, since closing it would drop the file's locks (``_peer_behind``).

        Raises:
            OSError: if no descriptor is or can be reserved.
        """
        if not self._own:
            self._own.append(os.dup(self._idle))
        own = self._own[0]
        try:
            os.dup2(descriptor, own, inheritable=False)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            yield None
            return
        if not stat.S_ISSOCK(os.fstat(own).st_mode):
            self._own.clear()
            yield None
            return
        borrowed = socket.socket(fileno=own)
        try:
            yield borrowed
        finally:
            borrowed.detach()
            os.dup2(self._idle, own, inheritable=False)


def _close_all(own: Iterable[int], idle: int) -> None:
    for descriptor in (*own, idle):
        os.close(descriptor)


def shut_down(peers: AbstractSet[Address], port: int, spare: SpareDescriptor) -> set[Address]:
    """Shut down this process's connections with ``peers`` on its own ``port``; return the peers that were found.

    Connections of a peer with other ports of this process stay open. Blocks for 10 us for each open file.

    Raises:
        OSError: if the open files cannot be listed, or a connection cannot be duplicated.
    """
    found: set[Address] = set()
    for descriptor in _open_files():
        if _peer_behind(descriptor, port) not in peers:
            continue
        with spare.duplicate(descriptor) as own:
            peer = None if own is None else _peer_at(own, port)  # by now the number may refer to another connection
            if own is not None and peer is not None and peer in peers:
                found.add(peer)
                _shut(own)
    return found


def _open_files() -> Iterable[int]:
    """The process's open descriptors. Listing them needs one more; without it, every possible number is returned."""
    try:
        return map(int, os.listdir(_OPEN_FILES))  # noqa: PTH208  # numbers of descriptors, not paths
    except OSError as error:
        if error.errno not in _FULL:
            raise
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return range(limit if 0 <= limit < _MOST_FILES else _MOST_FILES)


def _peer_behind(descriptor: int, port: int) -> Address | None:
    """The peer of a descriptor that is a TCP connection with ``port``; None for anything else.

    Files are neither duplicated nor closed here. POSIX releases all of a process's locks on a file when the process
    closes any descriptor of that file. SQLite uses such locks, so another process would conclude that the database has
    no other user, and remove its write-ahead log.
    """
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        borrowed = socket.socket(fileno=descriptor)
    except OSError:  # closed since it was listed
        return None
    try:
        return _peer_at(borrowed, port)
    finally:
        borrowed.detach()


def _peer_at(connection: socket.socket, port: int) -> Address | None:
    """The peer of a TCP connection with ``port``; None for anything else, or if it has been closed."""
    if connection.family not in {socket.AF_INET, socket.AF_INET6} or connection.type != socket.SOCK_STREAM:
        return None
    try:
        if connection.getsockname()[1] != port:
            return None
        host, peer_port = connection.getpeername()[:2]
    except OSError:  # a listener, or closed meanwhile
        return None
    address = ip_address(host)
    return None if address is None else (str(address), peer_port)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed by the peer meanwhile
        connection.shutdown(socket.SHUT_RDWR)
