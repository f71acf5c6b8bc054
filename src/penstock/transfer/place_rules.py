"""Decide which URLs may be inputs and outputs, as far as a URL tells: no name is looked up, and nothing is opened.

Who submits for others asks here, and who transfers asks again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from ipaddress import ip_address

from penstock.errors import TransferRejected
from penstock.transfer.addresses import NET_OPTION, Network, parse_nets, why_refused
from penstock.transfer.allowed_places import AllowedPlaces
from penstock.transfer.part_names import is_part
from penstock.transfer.places import FilePlace, ObjectPlace, Place, WebPlace, parse_file_or_object


@dataclass(frozen=True)
class PlaceRules:
    """What an operator allows."""

    inputs: AllowedPlaces = AllowedPlaces("--allow-input")
    outputs: AllowedPlaces = AllowedPlaces("--allow-output")
    nets: tuple[Network, ...] = ()
    """Networks that may be reached although they are not public."""
    net_option: str = NET_OPTION

    @classmethod
    def parse(cls, allow_input: str | None, allow_output: str | None, allow_net: str | None) -> PlaceRules:
        """The rules of the three options, of which None allows nothing.

        Raises:
            ConfigError: one of them cannot be read.
        """
        return cls(
            AllowedPlaces.parse(allow_input or "", "--allow-input"),
            AllowedPlaces.parse(allow_output or "", "--allow-output"),
            parse_nets(allow_net or ""),
        )

    def check_input(self, url: str) -> Place:
        """The place of an input.  Raises TransferRejected where `url` can never be one."""
        return self._checked(url, self.inputs)

    def check_output(self, url: str) -> Place:
        """The place of an output.  Raises TransferRejected where `url` can never be one."""
        place = self._checked(url, self.outputs)
        if not isinstance(place, WebPlace) and is_part(place.name):
            raise TransferRejected(
                f"{place}: names that begin with a dot and end with .part are reserved for unfinished outputs"
            )
        return place

    def _checked(self, url: str, allowed: AllowedPlaces) -> Place:
        place = parse_file_or_object(url)
        match place:
            case FilePlace():
                allowed.root_of(place)
            case ObjectPlace():
                allowed.root_of(place)
            case WebPlace():
                with contextlib.suppress(ValueError):  # a name, which is looked up when it is connected to
                    ip_address(place.host)
                    reason = why_refused(place.host, self.nets)
                    if reason:
                        raise TransferRejected(f"{place}: {reason}; {self.net_option} allows networks")
        return place
