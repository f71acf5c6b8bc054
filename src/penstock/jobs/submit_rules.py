"""Decide which jobs a host takes from those who submit over the network, before anything is kept.

A job that could only end as dead is refused here: of a service that this host does not have, in a format that the
service does not take, with an input or an output where none may be.  The consumer decides again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import ConfigError, TransferRejected
from penstock.hosting.servable import Servable
from penstock.jobs.job_formats import JobTarget
from penstock.jobs.job_options import read_job_options
from penstock.jobs.work_options import QueueOptions
from penstock.spelling import nearest
from penstock.transfer.place_rules import PlaceRules
from penstock.transfer.places import FilePlace, parse_file_or_object

MISSING_TYPE = "application/json"
"""What an input without a media type is, as over HTTP."""


class SubmitRules:
    """What a host with `services` takes.

    Raises ConfigError where an option cannot be read.
    """

    def __init__(self, services: Sequence[Servable], options: QueueOptions) -> None:
        self._targets = {service.name: JobTarget(service) for service in services}
        self._places = PlaceRules.parse(options.allow_input, options.allow_output, options.allow_net)
        self._allow_file = options.allow_file_from_http

    def check(self, given: Mapping[str, Any]) -> None:
        """Do nothing, or say why a job with the options `given` is not taken.

        Raises:
            ConfigError: an option is not known or has a value that it cannot have; the service is not known, or is not
                named where there are several.
            UnsupportedMediaType, NotAcceptable: the service does not take the input's media type, or gives none of
                `accept`.
            TransferRejected: the input's or the output's place is not allowed.
        """
        target = self._target(given.get("service", ""))
        if given.get("input_url") is None:
            target.check_inline()
        # Of an input at a URL the type may be left to the server that it comes from: all services take JSON.
        target.formats(given.get("content_type") or MISSING_TYPE, given.get("accept") or "")
        options = read_job_options(given)
        for url, check in (
            (options.input_url, self._places.check_input),
            (options.output_url, self._places.check_output),
        ):
            if url is not None:
                if not self._allow_file and isinstance(parse_file_or_object(url), FilePlace):
                    raise TransferRejected(
                        "file:// URLs are not allowed over HTTP; allow them with --allow-file-from-http"
                    )
                check(url)

    def _target(self, name: str) -> JobTarget:
        if name == "" and len(self._targets) == 1:
            return next(iter(self._targets.values()))
        found = self._targets.get(name)
        if found is not None:
            return found
        there_are = ", ".join(self._targets)
        if name == "":
            raise ConfigError(f"give the service of the job (service): {there_are}")
        near = nearest(name, self._targets)
        hint = f": did you mean {near}?" if near else f"; services: {there_are}"
        raise ConfigError(f"there is no service {name!r} here{hint}")
