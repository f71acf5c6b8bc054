"""Read the text of the option `chaos`: which faults are caused on purpose, and how often."""

from __future__ import annotations

from penstock.errors import ConfigError

CHAOS_KINDS = ("error", "delay", "kill", "drop")
"""The faults that can be caused on purpose."""
CHAOS_EXAMPLE = "seed=7,error=0.05,delay=0.1:0.5,kill=0.001,drop=0.01"
LONGEST_CHAOS_DELAY = 3600.0
"""The longest delay, an hour: longer ones are slips, as of milliseconds for seconds."""
_CHAOS_THAT_CAN_BE = (
    f"expected some of {CHAOS_EXAMPLE}: seed is a whole number; error, kill and drop are fractions from 0 to 1; delay "
    f"is FRACTION:SECONDS, at most {LONGEST_CHAOS_DELAY:g} s"
)


def read_chaos(text: str) -> dict[str, float]:
    """What the option `chaos` says: `seed`, the fraction of each kind, and `seconds`, those of a delay.

    Raises:
        ConfigError: the text cannot be read; it says what can be.
    """
    found: dict[str, float] = {}
    for entry in text.split(","):
        name, _, value = (part.strip() for part in entry.partition("="))
        if name in found:
            raise ConfigError(f"chaos: {name!r} is given twice")
        if name == "seed":
            found[name] = _chaos_seed(entry, value)
        elif name == "delay":
            fraction, _, seconds = value.partition(":")
            found[name] = _chaos_number(entry, fraction, 1.0)
            found["seconds"] = _chaos_number(entry, seconds, LONGEST_CHAOS_DELAY)
        elif name in CHAOS_KINDS:
            found[name] = _chaos_number(entry, value, 1.0)
        else:
            raise _unreadable_chaos(entry)
    if not found.keys() - {"seed"}:
        raise ConfigError(f"chaos: {text!r} names no fault; {_CHAOS_THAT_CAN_BE}")
    return found


def _unreadable_chaos(entry: str) -> ConfigError:
    return ConfigError(f"chaos: cannot read {entry.strip()!r}; {_CHAOS_THAT_CAN_BE}")


def _chaos_seed(entry: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise _unreadable_chaos(entry)
    return int(text)


def _chaos_number(entry: str, text: str, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        raise _unreadable_chaos(entry) from None
    if not 0 <= number <= most:  # neither is NaN
        raise _unreadable_chaos(entry)
    return number
