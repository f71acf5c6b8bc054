"""Tell which known name somebody meant who wrote another one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

LEAST_LIKENESS = 0.85
"""What difflib must say of two names for one to be near the other: `preprocessing` and `preprocess` have 0.87."""

ELSEWHERE = {
    "accelerator": "gpus",
    "address": "host",
    "batch_size": "max_size",
    "batch_timeout": "max_wait",
    "cert": "tls_cert",
    "certfile": "tls_cert",
    "cuda": "gpus",
    "device": "gpus",
    "devices": "gpus",
    "gpu": "gpus",
    "keyfile": "tls_key",
    "max_batch_delay": "max_wait",
    "max_batch_size": "max_size",
    "max_body_size": "max_body_bytes",
    "max_latency": "max_wait",
    "max_queue_size": "max_in_flight",
    "max_wait_time": "max_wait",
    "num_gpus": "gpus",
    "num_replicas": "workers",
    "num_workers": "workers",
    "processes": "workers",
    "queue_size": "max_in_flight",
    "replicas": "workers",
    "request_timeout": "timeout",
    "size": "max_size",
    "ssl_certfile": "tls_cert",
    "ssl_keyfile": "tls_key",
    "threads": "workers",
    "timeout": "max_wait",
    "wait": "max_wait",
    "workers_per_device": "workers",
}
"""What options of other servers, and obvious names, are called here, where the name itself is not known."""


def explain_keyword(name: str, own: Collection[str], elsewhere: Mapping[str, Collection[str]]) -> str:
    """Why there is no argument `name`, and what to write.

    `own` are the arguments that there are.  `elsewhere` has those of other calls, by a text of such a call in which
    ``{}`` stands for the argument.
    """
    # The call itself first: a `timeout` of a batch is its `max_wait`, although a service has a `timeout`.
    calls = {"{}": own, **elsewhere}
    same = ELSEWHERE.get(name, name)
    for meant, call in ((same, "{}"), *((name, other) for other in elsewhere), *((same, other) for other in elsewhere)):
        if meant in calls[call]:
            return f"there is no {name!r} here: write `{call.format(f'{meant}=...')}`"
    for call, names in calls.items():
        near = nearest(name, names, 0.75)
        if near is not None:
            return f"there is no {name!r} here: did you mean `{call.format(f'{near}=...')}`?"
    return f"there is no {name!r} here; there are {', '.join(own)}"


def nearest(name: str, known: Iterable[str], likeness: float = LEAST_LIKENESS) -> str | None:
    """The name of `known` that is nearest to `name`, or None where none is near."""
    from difflib import get_close_matches  # every worker imports this module, and few need that one

    return next(iter(get_close_matches(name, list(known), n=1, cutoff=likeness)), None)


def is_slip(name: str, meant: str) -> bool:
    """Whether `name` is `meant` but for `_`, capitals, and one letter.

    That is one too many, too few, another one, or one that has changed places with the next.
    """
    a, b = _plain(name), _plain(meant)
    if len(a) > len(b):
        a, b = b, a
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    rest, other = a[start:], b[start:]
    if len(rest) < len(other):
        return rest == other[1:]
    return rest[1:] == other[1:] or (rest[:2] == other[1::-1] and rest[2:] == other[2:])


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
