"""How an option is declared, checked, and read from a text: a field of a dataclass that carries its limits.

`config.py` has the options of Penstock; jobs, transfers and training runs declare theirs by the same means.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Container, Mapping
from dataclasses import Field, field, fields
from typing import Any

from penstock.errors import ConfigError


class Limit:
    """What the values of an option are, in code and in words.

    `words` end the sentence "NAME must be ...".  `plain` makes a plain value of an admitted one: a message to a worker
    carries no subclasses of int and float.  This is no dataclass, because to make one takes a millisecond at every
    import of penstock.
    """

    __slots__ = ("admits", "plain", "words")

    def __init__(self, words: str, admits: Callable[[Any], bool], plain: Callable[[Any], Any]) -> None:
        self.words = words
        self.admits = admits
        self.plain = plain

    def take(self, what: str, value: Any) -> Any:
        """`value` as a plain one; ConfigError if it is not admitted as the value of `what`."""
        if not self.admits(value):
            raise ConfigError(f"{what} must be {self.words}, got {value!r}")
        return self.plain(value)


def whole_number(*, least: int, most: int | None = None) -> Limit:
    """Integers from `least` on, up to `most`.

    Without `most`, one that is too large for a message becomes the largest that a message can carry.
    """
    return Limit(
        f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}",
        lambda value: (
            isinstance(value, int)
            and not isinstance(value, bool)
            and value >= least
            and (most is None or value <= most)
        ),
        lambda value: min(int(value), sys.maxsize),
    )


SECONDS = Limit(
    "more than 0 seconds", lambda value: isinstance(value, (int, float)) and 0 < value <= sys.float_info.max, float
)
AUTO = "auto"
AUTO_OR_SECONDS = Limit(
    '"auto", or more than 0 seconds; inf: never',
    lambda value: value == AUTO or (isinstance(value, (int, float)) and value > 0),
    lambda value: value if value == AUTO else float(value),
)
SECONDS_FROM_0 = Limit(
    "at least 0 seconds; inf: never", lambda value: isinstance(value, (int, float)) and value >= 0, float
)
SWITCH = Limit("True or False", lambda value: isinstance(value, bool), bool)


def option(
    default: Any,
    help: str,  # noqa: A002  # the word users know
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[Any, ...] = (),
    words: tuple[str, ...] = (),
    limit: Limit | None = None,
    kind: type | None = None,
    unit: str | None = None,
    repeated: bool = False,
    path: bool = False,
) -> Any:
    """A dataclass field that carries its explanation and its limits.

    `kind` is the type of a value.  Without it that is the type of the default; where the default is None, it is float
    with a `minimum`, and else str.  Where it is not int, `inf` is admitted above `maximum` too.  `unit` is what the
    command line calls the value; without it an integer is N, and a float SECONDS.  A `repeated` one is a text or
    several: its flag may be repeated, and in a flag or a variable commas stand between them.  Each of `words` may stand
    for a number.  A `path` may be given as anything that `os.fspath` takes, and is a text then.
    """
    if kind is None:
        kind = type(default)
        if default is None:
            kind = str if minimum is None else float
    metadata = {
        "help": help,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "words": words,
        "limit": limit,
        "kind": kind,
        "unit": unit,
        "repeated": repeated,
        "path": path,
    }
    return field(default=default, metadata=metadata)


def check_options(owner: Any) -> None:
    """Raise ConfigError for the first field of `owner` outside the limits its `option` names; paths become texts."""
    for f in fields(owner):
        value = getattr(owner, f.name)
        check_option(f, value)
        if f.metadata.get("path") and value is not None:
            object.__setattr__(owner, f.name, _path_text(f.name, value))  # the class may be frozen


def check_option(f: Field[Any], value: Any) -> None:
    """Raise ConfigError if `value` cannot be the value of field `f`."""
    choices = f.metadata.get("choices")
    if choices and value not in choices:
        raise ConfigError(f"{f.name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    if value is None:
        if f.default is None:
            return
        raise ConfigError(f"{f.name} must have a value, got None")
    for one in as_texts(f.name, value) if f.metadata.get("repeated") else (value,):
        if one == "":
            # Libraries give an empty text meanings of their own: to listen on every interface, for one.
            raise ConfigError(f"{f.name} must not be empty; leave it out for the default")
    if isinstance(f.default, bool) and not isinstance(value, bool):
        raise ConfigError(f"{f.name} must be true or false, got {value!r}")
    if f.metadata.get("minimum") is not None:
        _check_number(f, value, f.metadata["minimum"])


def _path_text(name: str, value: Any) -> str:
    """The path `value` as a text; ConfigError where it is none."""
    as_path = getattr(type(value), "__fspath__", None)  # as `os.fspath` does; nothing of the system is asked here
    text = value if as_path is None else as_path(value)
    if as_path is not None and isinstance(text, bytes):
        text = text.decode(errors="surrogateescape")
    if not isinstance(text, str):
        raise ConfigError(f"{name} must be the path of a file, as a string or a `pathlib.Path`, got {value!r}")
    if "\0" in text:
        raise ConfigError(f"{name} must not contain a null character, got {text!r}")
    return text


def _check_number(f: Field[Any], value: Any, minimum: float) -> None:
    if isinstance(value, str) and value in f.metadata["words"]:
        return
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and math.isnan(value)):
        words = "".join(f'"{word}" or ' for word in f.metadata["words"])
        raise ConfigError(f"{f.name} must be {words}a number, got {value!r}")
    whole = f.metadata["kind"] is int
    if whole and not isinstance(value, int):
        raise ConfigError(f"{f.name} must be a whole number, got {value!r}")
    if value < minimum:
        raise ConfigError(f"{f.name} must be at least {minimum:g}, got {value!r}")
    maximum = f.metadata.get("maximum")
    if maximum is None and not whole:
        maximum = sys.float_info.max  # an integer beyond it cannot be computed with
    if maximum is not None and value > maximum and (whole or value != math.inf):
        raise ConfigError(f"{f.name} must be at most {maximum}{'' if whole else ', or inf'}, got {value!r}")


def as_texts(name: str, value: object) -> tuple[str, ...]:
    """The texts of a repeated option called `name`; ConfigError where `value` is neither a text nor a list of them."""
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{name} must be a string or a list of strings, got {value!r}")
    return tuple(texts)


def environment_name(name: str) -> str:
    """The environment variable of an option: ``max_body_bytes`` is ``PENSTOCK_MAX_BODY_BYTES``."""
    return f"PENSTOCK_{name.upper()}"


def flag_name(option: str) -> str:
    """The flag of the option of this name."""
    return f"--{option.replace('_', '-')}"


def name_in_command(option: str) -> str:
    """How an error names an option of a command: by its flag and its variable."""
    return f"{flag_name(option)} (or {environment_name(option)})"


def renamed(error: ConfigError, owner: type, name: Callable[[str], str]) -> ConfigError:
    """`error`, which begins with an option of `owner`, with what `name` makes of that; any other as it is."""
    first, space, rest = str(error).partition(" ")
    option_name = first.removesuffix(":")
    if option_name not in {f.name for f in fields(owner)} or rest.startswith("and "):
        return error
    return ConfigError(f"{name(option_name)}{first[len(option_name) :]}{space}{rest}")


def parse_option(f: Field[Any], text: str, name: str | None = None) -> Any:
    """Make the value of field `f` from `text`, as the command line and the environment give it.

    An error calls the option `name`; without it by its flag and its variable.
    """
    if f.metadata.get("repeated"):
        return tuple(part.strip() for part in text.split(","))
    if text in f.metadata["words"]:
        return text
    kind: type[Any] = f.metadata["kind"]
    try:
        if kind is bool:
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
        if kind is int:
            return int(text, 8) if f.name.endswith("_mode") else int(text)
        return float(text) if kind is float else text
    except (KeyError, ValueError):
        expected = " or ".join([*f.metadata["words"], _KINDS[kind]])
        if f.name.endswith("_mode"):
            expected = "an octal number, such as 660"
        raise ConfigError(f"{name or name_in_command(f.name)}: expected {expected}, got {text!r}") from None


_KINDS: dict[type, str] = {int: "an integer", float: "a number", bool: "true or false"}


def from_environment(
    owner: type, environ: Mapping[str, str], names: Container[str] | None = None, *, flags: bool = True
) -> dict[str, Any]:
    """The options of dataclass `owner` that `environ` sets, as keyword arguments; with `names` only those.

    An empty variable sets nothing, and neither does one that is a `service_link`.  `flags` says whether there are flags
    beside the variables.
    """
    found = {}
    for f in fields(owner):
        if names is None or f.name in names:
            text = environ.get(environment_name(f.name))
            if text and not service_link(f.name, environ):
                found[f.name] = parse_option(f, text, None if flags else environment_name(f.name))
    return found


def service_link(name: str, environ: Mapping[str, str]) -> bool:
    """Whether the variable of option `name` is what Kubernetes sets for a Service that is called `penstock`.

    It sets NAME_PORT to ``tcp://10.0.0.1:8000`` in every pod of the namespace.
    """
    return name == "port" and environ.get(environment_name(name), "").startswith(("tcp://", "udp://", "sctp://"))
