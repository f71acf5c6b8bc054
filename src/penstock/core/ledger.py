"""Count the bytes a service holds in memory.  Pure: it is told what happens to payloads, and keeps none itself.

Contract
--------
`held` is always the sum of
* the payloads of every request that was let in, as far as they are not items yet (`Request.unfed_bytes`),
* the payload of every item that is in hand (`Item.nbytes`),
* the results of every request of several items, until the request completes (`Request.result_bytes`),
* what `hold` was told of: bytes that lie outside the queues.

Once a request was made with its size, only the methods here change `held` and the three numbers named above.
"""

from __future__ import annotations

from penstock.core.item import Item, Request
from penstock.core.payload import Payload, payload_size


class ByteLedger:
    """The bytes held for one service, of which there should be at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held = 0

    def has_room(self, nbytes: int) -> bool:
        """Whether `nbytes` more may be held.  Where nothing is held, any number may: one item always passes."""
        return self.held + nbytes <= self.max_bytes or self.held == 0

    def hold(self, nbytes: int) -> None:
        """Hold bytes that lie outside the queues; a negative number gives them back."""
        self.held += nbytes

    # -- the way of a request ---------------------------------------------------------------------------------------

    def let_in(self, request: Request) -> None:
        """Hold the payloads of `request`, which was not let in before."""
        request.admitted = True
        self.held += request.unfed_bytes

    def feed(self, item: Item) -> None:
        """Count the next payload of a request that was let in as the payload of `item` from now on.

        The size of a request may be more than that of its payloads, by brackets and commas.  That rest is given back
        with its last item.
        """
        request = item.request
        request.fed += 1
        request.unfed_bytes -= item.nbytes
        if request.fed == len(request.payloads):
            self.held -= request.unfed_bytes
            request.unfed_bytes = 0

    def drop_unfed(self, request: Request) -> None:
        """Give back the payloads that have become no items: they never will."""
        if request.admitted:
            self.held -= request.unfed_bytes
        request.unfed_bytes = 0

    def advance(self, item: Item, payload: Payload) -> None:
        """Hold `payload`, what a stage made of `item`, instead of what the item had."""
        nbytes = payload_size(payload)
        self.held += nbytes - item.nbytes
        item.nbytes = nbytes

    def settle(self, item: Item) -> None:
        """Give back the payload of `item`: it has its outcome."""
        self.held -= item.nbytes

    def keep_result(self, request: Request, payload: Payload) -> None:
        """Hold a result until `request` completes.  That of a lone item is not held: its caller has it at once."""
        if len(request.outcomes) > 1:
            nbytes = payload_size(payload)
            request.result_bytes += nbytes
            self.held += nbytes

    def complete(self, request: Request) -> None:
        """Give back the results of `request`: its caller has them."""
        self.held -= request.result_bytes
        request.result_bytes = 0
