"""Make the calls that users ask for: which request each becomes, and how its answer is read.

Nothing here does I/O.  Items are written here, in the thread of the caller: his objects may have code of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.client.batch_call import BatchCall
from penstock.client.call_bodies import CODECS, UnreadableBody, read_result_body, write_item, write_item_of_batch
from penstock.client.client_options import CallTerms, ClientOptions
from penstock.client.replies import Reply
from penstock.client.single_call import CallHead, SingleCall
from penstock.client.wire import LARGEST_PAGE_BYTES
from penstock.client.world import World
from penstock.core.tenants import USUAL_URGENCY
from penstock.errors import ConfigError, InvalidItem

USER_AGENT = "penstock-client"


class CallMaker:
    """Makes the calls of one client."""

    def __init__(self, options: ClientOptions, world: World) -> None:
        self._options = options
        self._world = world
        self._codec = CODECS[options.format]
        self._shared = {"user-agent": USER_AGENT}
        """The headers of every request."""
        if options.api_key is not None:
            self._shared["authorization"] = f"Bearer {options.api_key}"

    def predict(self, item: Any, terms: CallTerms) -> SingleCall[Any]:
        """One item for `/predict`."""
        return SingleCall(
            self._service_head("predict", terms, self._id(terms)), write_item(item, self._codec), read_any
        )

    def predict_many(
        self, items: Iterable[Any], terms: CallTerms, chunk: int, *, keep_going: bool
    ) -> Sequence[BatchCall]:
        """Many items as client batches of at most `chunk`; with `keep_going` one that cannot be written is an error."""
        if not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1:
            raise ConfigError(f"chunk must be a whole number of at least 1, got {chunk!r}")
        written = [self._written(item, keep_going=keep_going) for item in items]
        known_as = self._id(terms)
        parts = [written[first : first + chunk] for first in range(0, len(written), chunk)]
        ids = [known_as] if len(parts) == 1 else [f"{known_as}-{number}" for number in range(len(parts))]
        return [
            BatchCall(self._service_head("batch", terms, name), part, self._codec)
            for name, part in zip(ids, parts, strict=True)
        ]

    def health(self) -> SingleCall[dict[str, Any]]:
        """The page `/health`, which a full server answers too."""
        return SingleCall(self.head("GET", "/health", harmless=True, flow_controlled=False), None, _read_object)

    def head(
        self,
        method: str,
        path: str,
        *,
        harmless: bool,
        has_result: bool = False,
        flow_controlled: bool = True,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> CallHead:
        """The head of a request that is for no service; `has_result` says that its answer may be a result."""
        return CallHead(
            method,
            path,
            {**self._shared, **(headers or {})},
            self._world.new_id(),
            self._options.timeout if timeout is None else timeout,
            USUAL_URGENCY,
            harmless,
            self._options.max_result if has_result else LARGEST_PAGE_BYTES,
            flow_controlled,
        )

    def _service_head(self, verb: str, terms: CallTerms, request_id: str) -> CallHead:
        headers = dict(self._shared)
        if terms.urgency != USUAL_URGENCY:
            headers["priority"] = f"u={terms.urgency}"
        if terms.tenant:
            if self._options.tenant_header is None:
                raise ConfigError(
                    "a tenant needs tenant_header=..., the name of the header that the server reads tenants from"
                )
            headers[self._options.tenant_header.lower()] = terms.tenant
        return CallHead(
            "POST",
            f"/{terms.service}/{verb}" if terms.service else f"/{verb}",
            headers,
            request_id,
            self._options.timeout if terms.timeout is None else terms.timeout,
            terms.urgency,
            self._options.retry_non_idempotent,
            self._options.max_result,
        )

    def _id(self, terms: CallTerms) -> str:
        return self._world.new_id() if terms.request_id is None else terms.request_id

    def _written(self, item: Any, *, keep_going: bool) -> bytes | InvalidItem:
        try:
            return write_item_of_batch(item, self._codec)
        except InvalidItem as error:
            if keep_going:
                return error
            raise


def read_any(reply: Reply) -> Any:
    """The result that an answer has."""
    return read_result_body(reply.body, reply.headers.get("content-type", ""))


def _read_object(reply: Reply) -> dict[str, Any]:
    found = read_any(reply)
    if not isinstance(found, dict):
        raise UnreadableBody("a body that is not an object")
    return found
