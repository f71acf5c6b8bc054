"""What becomes of a connection when one of its requests is refused, as a table.

The question is what the client may still send of the refused body.

| the refused body                                   | more requests may follow | the request is the last one |
|----------------------------------------------------|--------------------------|-----------------------------|
| there is none                                      | READ_ON                  | CLOSE                       |
| at most `SKIPPED_BODY_BYTES`, none of it read yet  | SKIP                     | LINGER                      |
| longer, or in chunks                               | LINGER                   | LINGER                      |
| partly read                                        | LINGER                   | LINGER                      |
| the client waited for "100 Continue"               | LINGER                   | LINGER                      |

A client that waits for "100 Continue" may send its body after a refusal or leave it out.  Nobody can tell which, so
the next bytes cannot be trusted to be a request.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

SKIPPED_BODY_BYTES: Final = 64 * 1024
"""The longest refused body that is read and dropped, so that the connection can stay."""
LINGER_SECONDS: Final = 5.0
"""How long a connection lingers; then it is aborted."""
LINGER_BYTES: Final = 64 * 1024 * 1024
"""How much is discarded after the last request; at one byte more the connection is aborted."""


class AfterRefusal(IntEnum):
    """What a connection does once the refusal is on its way."""

    READ_ON = 0
    """It reads the next request."""
    SKIP = 1
    """It lets the body pass unread, within the time limits of a body, and reads the next request."""
    CLOSE = 2
    """It closes with the answer.  Should something come before that, it lingers."""
    LINGER = 3
    """It ends with the answer and lingers, so that the answer is not lost to a reset."""


READ_ON: Final[AfterRefusal] = AfterRefusal.READ_ON
SKIP_BODY: Final[AfterRefusal] = AfterRefusal.SKIP
CLOSE_AFTER: Final[AfterRefusal] = AfterRefusal.CLOSE
LINGER_AFTER: Final[AfterRefusal] = AfterRefusal.LINGER


def after_refusal(length: int, begun: bool, expects: bool, last: bool) -> AfterRefusal:
    """The table above.

    `length` is that of the body in bytes, negative where it comes in chunks; `begun` says that it was being read;
    `expects` says that the client waited for "100 Continue"; `last` says that the connection ends with this request.
    """
    if begun or expects or not 0 <= length <= SKIPPED_BODY_BYTES:
        return LINGER_AFTER
    if not length:
        return CLOSE_AFTER if last else READ_ON
    return LINGER_AFTER if last else SKIP_BODY
