"""What both clients are made of: what makes calls, what sends them, and what waits for jobs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.client.batch_call import BatchCall
from penstock.client.client_options import ClientOptions, read_server_address
from penstock.client.job_calls import JobCallMaker
from penstock.client.job_waiting import JobWaiting
from penstock.client.making_calls import CallMaker
from penstock.client.many_calls import gather_bounded
from penstock.client.sending import Sender
from penstock.client.world import World
from penstock.errors import PenstockError


class ClientCore:
    """The parts of one client, and the one call that is more than one request."""

    def __init__(self, url: str, options: ClientOptions, world: World | None) -> None:
        self.url = url
        self.options = options
        self.world = World() if world is None else world
        self.sender = Sender(read_server_address(url), options, self.world)
        self.maker = CallMaker(options, self.world)
        self.jobs = JobCallMaker(self.maker, options.timeout)
        self.waiting = JobWaiting(self.sender, self.jobs, self.world.clock, options.max_concurrency)

    async def send_many(self, calls: Sequence[BatchCall], *, keep_going: bool) -> list[Any]:
        """The answers to all items in order; without `keep_going` the first error ends all, and is raised."""
        self.sender.check()
        if not calls:
            return []
        deadline = self.world.clock.now() + calls[0].head.timeout
        makers = [partial(self._send_batch, call, deadline, keep_going=keep_going) for call in calls]
        parts = await gather_bounded(makers, self.options.max_concurrency)
        return [answer for part in parts for answer in part]

    async def _send_batch(self, call: BatchCall, deadline: float, *, keep_going: bool) -> list[Any]:
        answers = call.unsendable
        if answers is None:
            answers = await self.sender.send(call, deadline, is_part=True)
        if not keep_going:
            for answer in answers:
                if isinstance(answer, PenstockError):
                    try:
                        raise answer
                    finally:
                        del answer  # as in `SingleCall.give_up`
                        answers.clear()  # the call has them too
        return answers
