"""`penstock consume`: feed services from a job queue until told to stop."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from penstock.cli.jobs_door import check_closed, has_keys, open_port
from penstock.cli.options import WronglyCalled, server_options, service_fields, work_options
from penstock.cli.queue_url import needed_queue_url
from penstock.cli.saying import Say
from penstock.config import LogOptions, ServerOptions, ServiceOptions
from penstock.core.leases import longest_call
from penstock.errors import ConfigError
from penstock.hosting.doors import Doors
from penstock.hosting.given_sockets import SEE_OUT_SECONDS, hosts_of, sockets_given
from penstock.hosting.loop_clock import LoopClock
from penstock.hosting.preparing import prepare_host
from penstock.hosting.renewal import Renewal
from penstock.hosting.run import Door, run_until_signal
from penstock.hosting.servable import check_sockets, files_of_workers
from penstock.hosting.systemd import given_by_systemd
from penstock.jobs.consumer import Consumer
from penstock.jobs.job_metrics import JobCollector
from penstock.jobs.own_folder import OwnFolder
from penstock.jobs.stores.opening import open_store
from penstock.jobs.stores.urls import MEMORY, read_store_url
from penstock.jobs.work_options import WorkOptions
from penstock.runtime.spec import with_timeout
from penstock.server.app import App
from penstock.server.http1.listener import Listener
from penstock.server.jobs_port import JobsPort
from penstock.service import Service
from penstock.transfer.place_rules import PlaceRules
from penstock.transfer.transfers import TransferOptions, Transfers

NOT_FOR_PROBES = ("api_key_file", "tls_cert", "tls_key")
"""Options that `--health-bind` has no use for: whoever may reach it may ask."""
FROM_SYSTEMD = "systemd"
"""Value of `--bind` for the sockets that systemd opened."""


@dataclasses.dataclass(frozen=True)
class Work:
    """The run of `penstock consume`, as its command line describes it."""

    url: str
    options: WorkOptions
    server: ServerOptions
    says_stall: bool
    """Whether `--progress-deadline` or its variable was given."""

    @classmethod
    def read(cls, arguments: argparse.Namespace, environ: Mapping[str, str]) -> Work:
        """What `arguments` and `environ` say, checked; raises WronglyCalled."""
        options = work_options(arguments, environ)
        server = server_options(arguments, environ, unread=_unread(options))
        url = needed_queue_url(arguments.queue_url, arguments.queue_url_file, environ)
        if read_store_url(url).scheme == MEMORY and options.bind is None:
            raise WronglyCalled(
                ConfigError(
                    "a queue in memory belongs to this process only: with memory://, submit jobs over --bind HOST:PORT"
                )
            )
        if options.bind not in (None, FROM_SYSTEMD):
            try:
                read_address(options.bind)
            except ConfigError as error:
                raise WronglyCalled(error) from None
        says_stall = "progress_deadline" in service_fields(arguments, environ)
        return cls(url, options, dataclasses.replace(server, uds=None), says_stall)

    def bounded(self, services: Sequence[Service]) -> list[Service]:
        """`services` as a consumer runs them.

        A stage without a timeout of its own gets that of `--run-timeout`, and so does a service that does not say when
        it has stalled: a job may be long.  An inline service gets worker processes: code of a stage in this process
        would delay the renewal of leases.
        """
        return [
            Service(
                *[with_timeout(spec, self.options.run_timeout) for spec in service.stages],
                name=service.name,
                cpus=service.cpus,
                options=self._service_options(service.options),
            )
            for service in services
        ]

    def _service_options(self, options: ServiceOptions) -> ServiceOptions:
        if self.says_stall or options.progress_deadline != ServiceOptions().progress_deadline:
            return options
        return dataclasses.replace(options, progress_deadline=min(self.options.run_timeout, options.liveness_deadline))

    def sockets(self) -> list[socket.socket]:
        """Sockets that systemd opened for HTTP; an empty list where `--bind` is an address, or is not set.

        Raises:
            ConfigError: systemd gave some for which there is no use, or none where they are wanted.
        """
        sockets = sockets_given()
        try:
            self._check_sockets(sockets)
        except ConfigError:
            for sock in sockets:
                sock.close()
            raise
        return sockets

    def _check_sockets(self, sockets: Sequence[socket.socket]) -> None:
        wanted = self.options.bind == FROM_SYSTEMD
        if sockets and not wanted:
            given = "it serves no HTTP" if self.options.bind is None else f"--bind is {self.options.bind}"
            raise ConfigError(
                f"conflict with systemd socket activation (LISTEN_FDS): {given}. Use `--bind "
                f"{FROM_SYSTEMD}` to serve HTTP on these sockets, or remove the socket unit"
            )
        if wanted and not sockets:
            why = given_by_systemd().for_another or "start it by a unit that has a socket unit"
            raise ConfigError(
                f"--bind is {FROM_SYSTEMD}, but systemd passed no sockets to this process (LISTEN_FDS): {why}"
            )

    def _check_closed(self, services: Sequence[Service], sockets: Sequence[socket.socket]) -> None:
        """Do nothing, or raise WronglyCalled where anybody on a network could submit jobs."""
        if self.options.bind is None:
            return
        hosts = hosts_of(sockets) if sockets else [read_address(self.options.bind)[0]]
        keys = has_keys(self.server, services)
        try:
            for host in hosts:
                check_closed(host, uds=None, has_keys=keys)
        except ConfigError as error:
            raise WronglyCalled(error) from None

    def run(self, services: Sequence[Service], say: Say) -> None:
        """Work until a signal, or until the queue is empty where that is when to end.

        Raises:
            WronglyCalled: anybody could submit jobs.
            ConfigError: an option, a service or the store is not valid.
            StartFailed: an address cannot be opened, or a stage cannot be set up.
            StoreUnavailable: the store cannot be reached at the start.
        """
        with contextlib.ExitStack() as opened:
            self._run(services, say, [opened.enter_context(sock) for sock in self.sockets()])

    def _run(self, services: Sequence[Service], say: Say, sockets: Sequence[socket.socket]) -> None:
        self._check_closed(services, sockets)
        check_sockets(services)
        prepare_host(services, LogOptions(self.server.log_format, self.server.log_level))
        clock = LoopClock()
        downloads = OwnFolder(Path(tempfile.gettempdir(), f"penstock-{os.geteuid()}"), "the directory for downloads")
        transfers = Transfers(self._transfer_options(downloads.path))
        connect = partial(open_store, self.url, timeout=longest_call(self.options.lease))
        consumer = Consumer(services, connect, self.options, clock=clock, transfers=transfers)
        jobs = None if self.options.bind is None else open_port(self.url, services, self.options, clock)
        listeners: list[Listener] = []
        renewals: list[Renewal] = []
        faults = [consumer.faults]
        http, health = (self.options.bind, jobs, sockets), (self.options.health_bind, None, ())
        for address, port, listening in (http, health):
            if address is not None:
                app, listener = self._listener(services, consumer, address, clock, port, listening)
                listeners.append(listener)
                renewals += [*listener.renewals(), *app.renewals()]
                faults.append(app.problems.faults)
        doors: list[Door] = [*listeners, consumer]
        shown = read_store_url(self.url).shown

        def ready() -> None:
            if sockets:
                listeners[0].accept()
            for address in (found for listener in listeners for found in listener.addresses):
                say(f"ready on {address}")
            say(f"working on {shown}")
            consumer.services_ready()

        def flush() -> None:
            for each in faults:
                each.flush()

        try:
            run_until_signal(
                services,
                Doors(doors, [] if jobs is None else [jobs]),
                drain=self.options.drain_timeout,
                on_ready=ready,
                on_end=flush,
                renewals=renewals,
                shows_lines=self.server.log_format == "text",
                drain_delay=0.0 if self.options.bind is None else self.server.drain_delay,
                see_out=SEE_OUT_SECONDS if sockets else 0.0,
                until=consumer.finished,
                parts=[consumer],
            )
        finally:
            downloads.remove()

    def _transfer_options(self, folder: Path) -> TransferOptions:
        given = self.options
        rules = PlaceRules.parse(given.allow_input, given.allow_output, given.allow_net)
        return TransferOptions(
            folder,
            allowed_inputs=rules.inputs,
            allowed_outputs=rules.outputs,
            allowed_nets=rules.nets,
            max_input=given.max_input_bytes,
            timeout=given.transfer_timeout,
        )

    def _listener(
        self,
        services: Sequence[Service],
        consumer: Consumer,
        address: str,
        clock: LoopClock,
        jobs: JobsPort | None,
        sockets: Sequence[socket.socket],
    ) -> tuple[App, Listener]:
        """An app and its listener: with `jobs` the whole app, without them probes and metrics only.

        It is at `address`, or on `sockets` that listen already.
        """
        options = dataclasses.replace(self.server, drain_timeout=self.options.drain_timeout)
        if not sockets:
            host, port = read_address(address)
            options = dataclasses.replace(options, host=host, port=port)
        if jobs is None:  # `NOT_FOR_PROBES`
            options = dataclasses.replace(options, api_key_file=None, tls_cert=None, tls_key=None)
        app = App(services, options, clock, only_probes=jobs is None, jobs=jobs)
        app.health.watch(consumer)
        app.metrics.collect_from(JobCollector(consumer))
        listener = Listener(
            app, options, clock, worker_files=files_of_workers(services), sockets=sockets, accepts_later=bool(sockets)
        )
        app.metrics.watch(listener)
        return app, listener


def _unread(options: WorkOptions) -> list[str]:
    """The options of the server that are of no use to a consumer that listens as `options` say."""
    if options.bind is not None:
        return []
    if options.health_bind is not None:
        return [*NOT_FOR_PROBES]
    return [f.name for f in dataclasses.fields(ServerOptions) if not f.name.startswith("log_")]


def read_address(text: str) -> tuple[str, int]:
    """The host and the port of ``HOST:PORT``, ``[::1]:PORT`` or ``:PORT``, which is this machine alone.

    Raises:
        ConfigError: it is none of these.
    """
    host, colon, digits = text.rpartition(":")
    if not colon or not digits.isdecimal() or int(digits) > 65535 or (":" in host and not host.startswith("[")):
        raise ConfigError(f"invalid address {text!r}; write HOST:PORT, as in 127.0.0.1:8000 or [::]:8000")
    return host.strip("[]") or "127.0.0.1", int(digits)
