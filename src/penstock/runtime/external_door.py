"""The door of a service for workers from outside: where they connect, and who may stay.

Contract
--------
* A peer belongs to the door until it has said what it is; then to its stage, or it is refused and told why.
* It has `HELLO_SECONDS` for that.  So many peers as the stages may have workers, and `MOST_UNGREETED` more, may be in
  that state.  Where one more comes, the one that has been silent for longest is cut off: who speaks at once gets in.
* What a peer claims takes no memory before it comes, and no more than a handshake needs before it is known.
* What is refused is told in the log, one line a second at most.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.codec.text import cut_line, printable
from penstock.core.clock import Clock, Timer
from penstock.core.line_pace import LinePace
from penstock.errors import ProtocolError
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.unix_sockets import BACKLOG, bind_unix, inode, remove_unix
from penstock.runtime.external_incarnation import STOPS, ExternalIncarnation, ExternalPeer
from penstock.runtime.external_stage import ExternalStageDriver
from penstock.runtime.ventu_incarnation import VentuIncarnation
from penstock.transport.external_channel import FIRST_BYTES, FirstBytes, Parting, Successor
from penstock.transport.external_messages import ExternalFailure, ExternalHello, pack_json
from penstock.transport.forks import keep_from_forks
from penstock.transport.framing import MAGIC, VERSION, Kind, encode_control

log = guarded_logger("penstock.runtime")

HELLO_SECONDS: Final = 10.0
"""How long a peer may take until it has said what it is."""
MOST_UNGREETED: Final = 64
"""Most peers that have not said yet what they are, besides as many as the stages may have workers."""
LINE_BYTES: Final = 1024
OLD_BEGIN: Final = bytes(FIRST_BYTES)
"""How a worker of the old batching protocol begins: with an empty message."""
_PEER_CREDENTIALS = struct.Struct("3i")


class Credentials(NamedTuple):
    """Who is at the other end of a connection, as the kernel tells; None where it does not."""

    pid: int | None
    uid: int | None


class Visit(NamedTuple):
    """What the door knows of a peer."""

    who: Credentials
    due: float
    """When its time is up."""
    timer: Timer


def peer_credentials(descriptor: int) -> Credentials:
    """Who is at the other end of the Unix socket `descriptor`.  A process of another namespace has no number here."""
    if not hasattr(socket, "SO_PEERCRED"):  # macOS
        return Credentials(None, None)
    try:
        # What an event loop gives as its socket need not have this call.
        with socket.socket(fileno=os.dup(descriptor)) as own:
            found = own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    except OSError:
        return Credentials(None, None)
    pid, uid, _ = _PEER_CREDENTIALS.unpack(found)
    return Credentials(pid or None, uid)


class ExternalDoor:
    """The listening socket of one service, and the peers that have not attached yet."""

    def __init__(
        self, service: str, path: str, mode: int, stages: Sequence[ExternalStageDriver], *, only: bool, clock: Clock
    ) -> None:
        self._service = service
        self._path = path
        self._mode = mode
        self._stages = {stage.name: stage for stage in stages}
        self._only = only
        """Whether the one remote stage is the only stage of the service."""
        self._clock = clock
        self._server: asyncio.Server | None = None
        self._sock: socket.socket | None = None
        self._file: tuple[int, int] | None = None
        self._waiting: dict[object, Visit] = {}
        """The peers that have not said yet what they are, oldest first."""
        self._most_waiting = MOST_UNGREETED + sum(stage.seats for stage in stages)
        self._pace = LinePace()

    def own_descriptors(self) -> list[int]:
        """What a fork must not keep: it would go on listening."""
        return [] if self._sock is None or self._sock.fileno() < 0 else [self._sock.fileno()]

    async def open(self) -> None:
        """Listen.

        Raises:
            StartFailed: the path cannot be listened on.
        """
        self._sock = sock = bind_unix(self._path, self._mode)
        self._file = inode(self._path)
        keep_from_forks(self)
        # In two steps, and the first one does not wait: whoever cancels the start finds here what is to be closed.
        self._server = await asyncio.get_running_loop().create_unix_server(
            self._accepted, sock=sock, backlog=BACKLOG, start_serving=False
        )
        await self._server.start_serving()
        log.info("service %r accepts remote workers at %s", self._service, self._path)

    def close(self) -> None:
        """Listen no more, remove the socket file, and cut off who has no slot yet."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for peer in list(self._waiting):
            self._cut_off(peer, None)
        self._forget_file()

    def abandon(self) -> None:
        """Remove the socket file, from any thread and without an event loop."""
        self._forget_file()

    def _forget_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            remove_unix(self._path, file)

    # -- who comes ----------------------------------------------------------------------------------------------

    def _accepted(self) -> FirstBytes:
        return FirstBytes(self._wait_for, self._choose, self._lost)

    def _wait_for(self, first: FirstBytes) -> None:
        transport = first.transport
        assert transport is not None, "it was just made"
        who = peer_credentials(transport.get_extra_info("socket").fileno())
        self._receive(first, who, self._clock.now() + HELLO_SECONDS)
        if self._server is None:  # it was accepted in the turn of the loop in which the door was closed
            self._cut_off(first, None)
        elif len(self._waiting) > self._most_waiting:
            late = f"no HELLO received, and {self._most_waiting} newer connections are waiting"
            self._cut_off(next(iter(self._waiting)), late)

    def _receive(self, peer: object, who: Credentials, due: float) -> None:
        """Wait until `due` for what `peer` says."""
        late = f"no HELLO received within {HELLO_SECONDS:g} s"
        timer = self._clock.call_later(due - self._clock.now(), partial(self._cut_off, peer, late))
        self._waiting[peer] = Visit(who, due, timer)

    def _choose(self, first: FirstBytes, transport: asyncio.Transport, begin: bytes) -> Successor | None:
        """What goes on with a connection that begins with these bytes; None refuses it."""
        visit = self._waiting[first]
        self._forget(first)
        kind = self._kind_of(begin)
        if kind is not None:
            peer = kind(self, self._clock, visit.who.pid)
            self._receive(peer, visit.who, visit.due)
            return peer.channel
        if begin == OLD_BEGIN:
            why = f"the old batching protocol supports only services with one stage, and {self._service!r} has several"
            self._note_refused(why, visit.who)
            Parting(transport, b"", self._clock)  # it would read a frame as the length of a batch
        else:
            why = f"not a worker protocol: the connection starts with {begin!r}"
            self._note_refused(why, visit.who)
            self._finish(transport, why)
        return None

    def _kind_of(self, begin: bytes) -> type[ExternalIncarnation] | None:
        """What speaks with a worker whose first bytes are these; None where nothing does."""
        if begin.startswith(MAGIC):
            return ExternalIncarnation
        return VentuIncarnation if begin == OLD_BEGIN and self._only else None

    def _lost(self, first: FirstBytes) -> None:
        self._forget(first)

    def _forget(self, peer: object) -> None:
        """Take `peer` from those that wait."""
        self._waiting.pop(peer).timer.cancel()

    # -- what they say ------------------------------------------------------------------------------------------

    def greeted(self, peer: ExternalPeer, hello: ExternalHello) -> None:
        """`peer` has said what it is: its stage takes it.  Raises ProtocolError where it does not."""
        if hello.version != VERSION:
            raise ProtocolError(
                f"the worker uses version {hello.version} of the protocol, the service version {VERSION}"
            )
        stage = self._stage(hello.stage)
        stage.attach(peer, hello, self._waiting[peer].who.uid)
        self._forget(peer)

    def _stage(self, name: str | None) -> ExternalStageDriver:
        names = ", ".join(map(repr, self._stages))
        if name is None:
            if len(self._stages) > 1:
                raise ProtocolError(f"service {self._service!r} has several remote stages: name one of {names}")
            return next(iter(self._stages.values()))
        if name not in self._stages:
            shown = cut_line(repr(name), 100)
            raise ProtocolError(f"service {self._service!r} has no remote stage {shown}; it has {names}")
        return self._stages[name]

    def refused(self, peer: ExternalPeer, why: str) -> None:
        """`peer` was told why it cannot stay."""
        who = self._waiting[peer].who
        self._forget(peer)
        self._note_refused(why, who)

    def left(self, peer: ExternalPeer) -> None:
        """`peer` has gone before it had a slot."""
        self._forget(peer)

    # -- who goes -----------------------------------------------------------------------------------------------

    def _cut_off(self, peer: Any, why: str | None) -> None:
        """Tell `peer` why it cannot stay, and close; None: nobody is taken any more."""
        if isinstance(peer, FirstBytes):
            who, transport = self._waiting[peer].who, peer.transport
            self._forget(peer)
            assert transport is not None, "it was not handed on"
            peer.transport = None  # it has nothing to tell of its end, which may be on its way already
            self._note_refused(STOPS if why is None else why, who)
            self._finish(transport, why)
        else:
            peer.kill(why)  # which tells us that it was refused

    def _finish(self, transport: asyncio.Transport, why: str | None) -> None:
        """Say `why`, if there is a reason, to one whose protocol is not known, and close."""
        last = b"" if why is None else encode_control(Kind.FAILED, pack_json(ExternalFailure(why)))[0]
        Parting(transport, last, self._clock)

    def _note_refused(self, why: str, who: Credentials) -> None:
        left_out = self._pace.take(self._clock.now())
        if left_out is None:
            return
        more = f" ({left_out} more rejected since the last line)" if left_out else ""
        uid = "unknown" if who.uid is None else who.uid
        words = f"service {self._service!r} rejected a worker (pid {who.pid or 'unknown'}, uid {uid}): {printable(why)}"
        log.warning("%s%s", cut_line(words, LINE_BYTES), more)
