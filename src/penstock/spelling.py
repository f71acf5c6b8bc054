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
    "max_queue_size": "max_queued",
    "max_wait_time": "max_wait",
    "num_gpus": "gpus",
    "num_replicas": "workers",
    "num_workers": "workers",
    "processes": "workers",
    "queue_size": "max_queued",
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


RENAMED = {
    # Commands.
    "penstock artifact": "penstock model",
    "penstock config": "penstock generate",
    "penstock doctor": "penstock jobs doctor",
    "penstock export": "penstock model export",
    "penstock work": "penstock consume",
    "penstock worker": "penstock worker run",
    "penstock worker-check": "penstock worker test",
    # Names of modules.
    "penstock.errors.EndedWithoutResult": "penstock.errors.JobNotSucceeded",
    "penstock.errors.FormatNotGiven": "penstock.errors.NotAcceptable",
    "penstock.errors.FormatNotTaken": "penstock.errors.UnsupportedMediaType",
    "penstock.errors.JobTooLarge": "penstock.errors.InputTooLarge",
    "penstock.errors.TransferRefused": "penstock.errors.TransferRejected",
    "penstock.errors.TransferStopped": "penstock.errors.TransferCancelled",
    "penstock.external": "penstock.remote",
    "penstock.features.Kind": "penstock.features.Feature",
    "penstock.features.StandIn": "penstock.features.FillValue",
    "penstock.features.Tensor": "penstock.features.TensorSpec",
    "penstock.jobs.EndedWithoutResult": "penstock.jobs.JobNotSucceeded",
    "penstock.jobs.JobTooLarge": "penstock.jobs.InputTooLarge",
    # Options, with their flags and variables, and arguments.
    "abandon_after": "orphan_timeout",
    "allow_nan": "nan_as_null",
    "attach_grace": "reattach_timeout",
    "attempts": "max_attempts",
    "backoff": "retry_backoff",
    "busy_is_unready": "unready_when_full",
    "check": "validation_data",
    "chunk": "batch_size",
    "codec": "format",
    "concurrency": "max_in_flight_jobs",
    "connection_age": "max_connection_age",
    "cors_origin": "cors_allow_origin",
    "digest": "model_digest",
    "download_timeout": "transfer_timeout",
    "drain": "drain_timeout",
    "expired_status": "queue_timeout_status",
    "external_workers": "remote_worker_socket",
    "external_workers_mode": "remote_worker_socket_mode",
    "faults": "failpoints",
    "format": "model_format",
    "health": "health_bind",
    "hold_after_idle": "delay_when_idle",
    "http": "bind",
    "ignore": "missing_values",
    "jobs_min_share": "background_share",
    "join": "concat_into",
    "keep": "result_ttl",
    "keep_alive": "keepalive_timeout",
    "keep_dead": "dead_ttl",
    "key_only": "cross_only",
    "kind": "phase",
    "kinds": "features",
    "late_status": "run_timeout_status",
    "many": "max_length",
    "max_batches": "max_in_flight_batches",
    "max_body": "max_body_bytes",
    "max_external_workers": "max_remote_workers",
    "max_gap": "max_idle_gap",
    "max_header": "max_header_bytes",
    "max_held_bytes": "max_buffered_bytes",
    "max_inline": "max_inline_bytes",
    "max_input": "max_input_bytes",
    "max_queued": "max_in_flight",
    "max_run": "run_timeout",
    "max_spool": "max_spool_bytes",
    "max_target": "max_target_bytes",
    "missing": "fill_value",
    "oov_buckets": "num_oov_indices",
    "order": "queue_order",
    "output": "output_url",
    "poll": "poll_interval",
    "probes": "reference_rows",
    "queue": "queue_url",
    "queue_file": "queue_url_file",
    "recycle_after": "unhealthy_after",
    "retry_unsafe": "retry_non_idempotent",
    "slab_bytes": "shm_bytes",
    "slab_from": "shm_threshold",
    "spool": "spool_dir",
    "stall_dead": "liveness_deadline",
    "stall_unready": "progress_deadline",
    "tenants": "tenants_file",
    "trust": "trust_model_code",
    "unread_timeout": "write_timeout",
    "validate": "validate_inputs",
}
"""Old names and their new ones.  An old name of one call may be the name of an argument of another call today."""


def explain_name(module: str, name: str) -> str:
    """Why `module` has no `name`, and where it is known what it is called now."""
    now = RENAMED.get(f"{module}.{name}")
    return f"module {module!r} has no attribute {name!r}" if now is None else f"{module}.{name} is {now} now"


def explain_keyword(name: str, own: Collection[str], elsewhere: Mapping[str, Collection[str]]) -> str:
    """Why there is no argument `name`, and what to write.

    `own` are the arguments that there are.  `elsewhere` has those of other calls, by a text of such a call in which
    ``{}`` stands for the argument.
    """
    # The call itself first: a `timeout` of a batch is its `max_wait`, although a service has a `timeout`.
    calls = {"{}": own, **elsewhere}
    now = RENAMED.get(name)
    for call, names in calls.items():
        if now in names:
            return f"there is no {name!r} here: it is `{call.format(f'{now}=...')}` now"
    same = ELSEWHERE.get(name, name)
    known = (same, RENAMED.get(same, same))  # a limit of a queue is one of a stage, or of all that a service has
    for meant, call in (
        *((each, "{}") for each in known),
        *((name, other) for other in elsewhere),
        *((each, other) for other in elsewhere for each in known),
    ):
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
