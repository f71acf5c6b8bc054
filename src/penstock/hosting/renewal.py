"""Read certificates and keys again while the process serves.

Contract
--------
* Files are read in threads: a file system that hangs stops no event loop.  What was read comes in force on the loop.
* What cannot be used is logged, and the old stays.  One bad file does not keep another from being renewed.
* A file that takes longer than `RENEWAL_SECONDS` is given up, and what it brings later is dropped.  While it is still
  being read, it is not read once more: at most one thread hangs for each file.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.errors import ConfigError
from penstock.hosting.guarded_log import guarded_logger

log = guarded_logger("penstock.server")

RENEWAL_SECONDS = 10.0
"""How long it may take to read a file again."""

UseRenewed: TypeAlias = Callable[[], None]
"""Puts what was read in force; called on the event loop."""


@dataclass(slots=True)
class Renewal:
    """Something that can be read again."""

    what: str
    """What is read, for the log: the option and the file."""
    read: Callable[[], UseRenewed]
    """Reads it, in a thread; ConfigError says why it cannot be used."""
    reading: bool = field(default=False, init=False, compare=False)
    """Whether a thread reads it now, perhaps one that was given up."""


async def renew(renewals: Sequence[Renewal], why: str) -> None:
    """Read all of it again, and put in force what can be used; each line in the log begins with `why`."""
    if not renewals:
        log.info("%s: nothing to reload: no certificate and no key file is set", why)
    await asyncio.gather(*(_renew(renewal, why) for renewal in renewals))


async def _renew(renewal: Renewal, why: str) -> None:
    if renewal.reading:
        log.error("%s: reload failed, keeping the old one: an earlier read of %s has not finished", why, renewal.what)
        return
    try:
        use = await asyncio.wait_for(_read_in_thread(renewal), RENEWAL_SECONDS)
    except ConfigError as error:
        # Without a traceback, which would be ours and explain nothing.
        log.error("%s: reload failed, keeping the old one: %s", why, error)  # noqa: TRY400
    except TimeoutError:
        slow = "%s: reload failed, keeping the old one: reading %s took longer than %g s"
        log.error(slow, why, renewal.what, RENEWAL_SECONDS)  # noqa: TRY400
    except Exception:
        log.exception("%s: reload failed, keeping the old one: %s", why, renewal.what)
    else:
        use()
        log.info("%s: reloaded %s", why, renewal.what)


def _read_in_thread(renewal: Renewal) -> asyncio.Future[UseRenewed]:
    """What `renewal` reads.  The thread is a daemon: one that hangs must not keep the process from its end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[UseRenewed] = loop.create_future()

    def read() -> None:
        found: UseRenewed | Exception
        try:
            found = renewal.read()
        except Exception as error:  # noqa: BLE001  # the top of the thread: whoever waits gets it
            found = error
        renewal.reading = False  # first: whoever is told may ask for the next reading at once
        _tell(loop, done, found)

    thread = threading.Thread(target=read, name=f"penstock renewal of {renewal.what}", daemon=True)
    renewal.reading = True
    try:
        thread.start()
    except RuntimeError:  # there can be no more threads
        renewal.reading = False
        raise
    return done


def _tell(loop: asyncio.AbstractEventLoop, done: asyncio.Future[UseRenewed], found: UseRenewed | Exception) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(_settle, done, found)


def _settle(done: asyncio.Future[UseRenewed], found: UseRenewed | Exception) -> None:
    if done.done():  # it was given up
        return
    if isinstance(found, Exception):
        done.set_exception(found)
    else:
        done.set_result(found)
