"""Count the bytes a service holds in memory.  Pure: it is told what happens to payloads, and keeps none itself.

Contract
--------
`held` is always the sum of
* the payloads of every request that was let in, as far as they are not items yet (`Request.unfed_bytes`),
* the payload of every item that is in hand (`Item.nbytes`),
* the results and the texts of failures of every request of several items that has its results held, until it
  completes (`Request.result_bytes`),
* what `hold` was told of: half-received bodies, client batches that are being split, and the objects of their items,
* `answers`, which is what `hold_answer` was told of: finished answers that no client has taken yet.

`max_bytes` bounds three sums, each by itself: `answers`, all the rest, and of the rest what requests have gathered.
* What comes in has room by the rest alone.  A client that leaves its answers unread takes no room from the others.
  While `memory_short` nothing more comes in, whatever is held.
* Nothing is computed for more answers while `answers_overfull`.  It may exceed the bound by what was computed then.
* All requests that have their results held may gather `max_bytes` of them together.  With more, the request that has
  gathered the most is `full`: it gathers only what workers hold of it then, and counts here no longer.  What is
  gathered is no finished answer: a request that waited for its own results to be read would wait for itself.

Once a request was made with its size, only the methods here change `held`, `answers` and the numbers of requests and
items that are named above.
"""

from __future__ import annotations

from penstock.core.item import Item, Request
from penstock.core.outcome import Outcome, outcome_size
from penstock.core.payload import Payload, payload_size


class ByteLedger:
    """The bytes held for one service; the contract says what `max_bytes` is the most of."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held = 0
        self.answers = 0
        self.memory_short = False
        """Whether the machine has less memory available than is to be left free."""
        self._gathered = 0
        """The results that are held for requests which are not full."""
        self._gathering: dict[Request, None] = {}
        """Those requests, in the order of their first results."""

    @property
    def answers_overfull(self) -> bool:
        """Whether finished answers take more than they may."""
        return self.answers > self.max_bytes

    def has_room(self, nbytes: int) -> bool:
        """Whether `nbytes` more may come in.  Where only answers are held any number may: one item always passes."""
        if self.memory_short:
            return False
        taken = self.held - self.answers
        return taken + nbytes <= self.max_bytes or taken == 0

    def hold(self, nbytes: int) -> None:
        """Hold bytes besides those of payloads; a negative number gives them back."""
        self.held += nbytes

    def hold_answer(self, nbytes: int) -> None:
        """Hold bytes of a finished answer; a negative number gives them back."""
        self.held += nbytes
        self.answers += nbytes

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

    def keep_outcome(self, request: Request, outcome: Outcome) -> Request | None:
        """Hold an outcome until `request` completes; returns the request that is full from now on, if one is.

        That of the last unsettled item is not held: its caller has it at once.
        """
        if not request.holds_results or request.unsettled == 1:
            return None
        nbytes = outcome_size(outcome)
        request.result_bytes += nbytes
        self.held += nbytes
        if request.full:
            return None
        self._gathering[request] = None
        self._gathered += nbytes
        if self._gathered <= self.max_bytes:
            return None
        largest = max(self._gathering, key=_result_bytes)
        largest.full = True
        self._gather_no_more(largest)
        return largest

    def _gather_no_more(self, request: Request) -> None:
        if request in self._gathering:
            del self._gathering[request]
            self._gathered -= request.result_bytes

    def complete(self, request: Request) -> None:
        """Give back the results of `request`: its caller has them."""
        self._gather_no_more(request)
        self.held -= request.result_bytes
        request.result_bytes = 0


def _result_bytes(request: Request) -> int:
    return request.result_bytes
