"""What the words that name a service on a command line mean.  Nothing is imported here, and no file is read.

A target is a module or a file, and after a colon what it is called in there:

* ``module:service`` and ``package.module:service``: a module on the Python path, the current folder first.
* ``good.py:service`` and ``folder/good.py:service``: a file, as `python folder/good.py` takes it.
* ``module:make``: a function without arguments that returns the service.
* ``module`` and ``good.py``: the only service in there.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import ConfigError


class Target(NamedTuple):
    """One service, as it was named."""

    text: str
    """The words as they were given."""
    where: str
    """A module's dotted name, or the path of a file."""
    attribute: str
    """What the service is called in there, with dots; "" is the only one."""

    @property
    def is_file(self) -> bool:
        """Whether `where` is the path of a file."""
        return self.where.endswith(".py")


def parse_target(text: str) -> Target:
    """The service that `text` names; ConfigError says how a service is named where it names none."""
    where, colon, attribute = text.partition(":")
    target = Target(text, where, attribute)
    if (colon and not all(attribute.split("."))) or not where or where == ".py":
        raise _no_target(text)
    if target.is_file:
        return target
    if "/" in where:
        raise ConfigError(f"{text!r} does not name a service: for a file, write {where}.py:service")
    if not all(where.split(".")):  # no module has a path for a name
        raise _no_target(text)
    return target


def _no_target(text: str) -> ConfigError:
    return ConfigError(f"{text!r} does not name a service: write module:service, or file.py:service")
