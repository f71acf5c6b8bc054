"""The same application as a WSGI app: for gunicorn's `sync` and `gthread` workers, alone or mounted in Flask.

Contract
--------
* Routes, refusals, ids, metrics and the key are those of `App`: only the carrier differs.
* The services start in the process that first calls the app, or its `start`: never at import, and never before a fork.
  They run on a loop thread of that process.  A fork of it starts its own, and leaves its parent's workers alone.
* A call of a service waits for the start, until its deadline.  Everything else is answered at once, `/livez` and
  `/readyz` above all.
* A start that fails is tried again; calls get a 503 with the reason meanwhile.
* `stop` answers what is in hand; later calls get a 503.  Without it the workers end with their process.

`wsgi_services.py` has the life of the services in one process, `wsgi_call.py` one call, `wsgi_environ.py` its head.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from functools import partial

from penstock.config import ServerOptions
from penstock.core.clock import Clock
from penstock.hosting.loop_clock import LoopClock
from penstock.hosting.loop_thread import check_threads
from penstock.hosting.servable import Servable
from penstock.server.app import App
from penstock.server.wsgi_call import StartResponse, WsgiCall
from penstock.server.wsgi_environ import Environ, read_environ
from penstock.server.wsgi_services import WsgiServices


def wsgi(served: Servable | Sequence[Servable], options: ServerOptions | None = None) -> WsgiApp:
    """A WSGI app for one service or several.

    `options` are the server's.  Those about sockets and connections have no effect here: the outer server has its own.

    Raises:
        ConfigError: the services cannot be served together, the file of API keys cannot be read, or a library has
            replaced the threads of this process.
    """
    check_threads()
    services = served if isinstance(served, Sequence) else (served,)
    return WsgiApp(services, options or ServerOptions(), LoopClock())


class WsgiApp:
    """What `wsgi` makes: call it with an environ and start_response.  Any number of threads may."""

    def __init__(self, services: Sequence[Servable], options: ServerOptions, clock: Clock) -> None:
        # What cannot be served is said here.  The files of keys and tenants are read here too: where the server forks,
        # its processes may not read what only root may.
        known = App(services, options, clock).identities
        # One for each process: two that were forked from one would give the same ids to their requests.
        self._make_app = partial(App, tuple(services), options, clock, identities=known)
        self._hosted: WsgiServices | None = None
        self._lock = threading.RLock()
        """Taken to make what hosts the services: of two calls that come first, one does."""
        self._is_copy = False
        """Whether this process is a fork of one that had started the services."""
        _apps.add(self)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterator[bytes]:
        """Answer one request: the body of its answer, to be closed as WSGI says."""
        hosted = self._hosted or self._host()
        return WsgiCall(hosted, read_environ(environ, hosted.app.clock.now()), environ).run(start_response)

    def start(self) -> None:
        """Start the services, and return once they are ready: for a server's hook.  Harmless where they run.

        After a start that failed it does not wait for the next one to be due.

        Raises:
            StartFailed: a stage could not be set up.  The services are stopped then.
            ConfigError: a service runs already, elsewhere in this process.
        """
        hosted = self._host(again=True)
        try:
            hosted.wait_started()
        except BaseException:
            hosted.stop()
            raise

    def stop(self) -> None:
        """Answer what is in hand, for at most the option `drain`, and end the workers; later calls get a 503.

        It may be called at any time, any number of times.  `start` starts the services again.
        """
        hosted = self._hosted
        if hosted is not None:
            hosted.stop()

    def _host(self, *, again: bool = False) -> WsgiServices:
        """What hosts the services in this process; with `again` also after a `stop`."""
        with self._lock:
            hosted = self._hosted
            if again and hosted is not None and (hosted.stopped or hosted.failed):
                hosted.stop()  # to its end, before the services are started again
                hosted = None
            if hosted is None:
                self._hosted = hosted = WsgiServices(self._make_app(), is_copy=self._is_copy)
            return hosted

    def _after_fork(self) -> None:
        self._is_copy = self._is_copy or self._hosted is not None
        self._hosted = None
        self._lock = threading.RLock()  # another thread of the parent may have had it


_apps: weakref.WeakSet[WsgiApp] = weakref.WeakSet()


def _forget_copies() -> None:
    for app in _apps:
        app._after_fork()


os.register_at_fork(after_in_child=_forget_copies)
