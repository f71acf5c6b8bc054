"""The suite of `penstock.testing.channels` over every channel there is, on every event loop."""

from __future__ import annotations

import socket

from penstock.testing.channels import ChannelSuite
from penstock.transport.memory import MemoryChannel
from penstock.transport.sockets import SocketChannel
from penstock.transport.worker_socket import SocketWorkerEnd

LOOPS = ("asyncio", "uvloop")


class TestSocketChannel(ChannelSuite):
    async def open(self, sink):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        return await SocketChannel.open(ours, sink), SocketWorkerEnd(theirs, slabs=True)


class TestSocketChannelThatWritesInParts(TestSocketChannel):
    async def open(self, sink):
        channel, worker = await super().open(sink)
        # A socket with a timeout takes what fits and returns, where a blocking one would wait.
        worker._sock.settimeout(20)
        return channel, worker


class TestMemoryChannel(ChannelSuite):
    async def open(self, sink):
        channel = MemoryChannel(sink)
        return channel, channel.worker_end
