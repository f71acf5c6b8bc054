"""What handshakes and failures say, as data."""

from __future__ import annotations

import msgspec
import pytest

from penstock.codec.formats import Codec
from penstock.config import LogOptions, StageOptions
from penstock.core.series import LONGEST_NAME, LONGEST_VALUE, MOST_LABELS
from penstock.errors import ProtocolError
from penstock.transport.external_messages import pack_json
from penstock.transport.messages import (
    COUNTS_BYTES,
    Counts,
    Hello,
    Launch,
    Problem,
    StageRef,
    counts_payloads,
    invalid_input,
    pack,
    stage_failure,
    unpack,
)

LAUNCH = Launch(
    service="s",
    stage="t",
    index=1,
    count=2,
    gpus=(0, "GPU-1"),
    ref=StageRef("m", "C", main_path=b"/x\xe8.py"),
    setup=b"\x80",
    sys_path=[b"a", b"\xe8"],
    batched=True,
    max_size=8,
    options=StageOptions(prefetch=3, timeout=0.5, bisect=False),
    first=True,
    last=False,
    behind="r",
    crossing=Codec.MSGPACK,
    validate=True,
    validate_results=False,
    allow_nan=True,
    logs=LogOptions("json", "info,my.model=debug"),
    served=True,
)
PROBLEM = Problem("builtins.KeyError", ("builtins.KeyError", "builtins.LookupError"), "'x'", "Traceback ...", "$.x")


@pytest.mark.parametrize("message", [Hello(5), LAUNCH, PROBLEM])
def test_a_message_is_read_as_it_was_written(message):
    assert unpack(memoryview(pack(message)), type(message)) == message


@pytest.mark.parametrize("payload", [b"", b"\xff", b"\x80", pack(Hello(5)), pack(LAUNCH)[:-1]])
def test_what_is_not_the_message_is_a_protocol_error_that_names_it(payload):
    with pytest.raises(ProtocolError, match="not a Launch"):
        unpack(payload, Launch)


def test_a_worker_checks_the_options_it_is_sent():
    order = msgspec.to_builtins(LAUNCH, builtin_types=(bytes,))
    order["options"]["prefetch"] = -1
    with pytest.raises(ProtocolError, match=r"prefetch must be a whole number of at least 0, got -1 - at `\$.options`"):
        unpack(msgspec.msgpack.encode(order), Launch)


def test_a_stage_failure_says_all_that_the_problem_said():
    error = stage_failure(PROBLEM, "embed")
    assert (error.stage, error.type_name, error.message, error.traceback) == (
        "embed",
        "builtins.KeyError",
        "'x'",
        "Traceback ...",
    )
    assert error.is_a(LookupError)
    assert not error.is_a(ValueError)


def test_an_invalid_item_keeps_its_reason_and_path():
    error = invalid_input(PROBLEM)
    assert (error.reason, error.path, str(error)) == ("'x'", "$.x", "'x' at `$.x`")


def test_counts_are_told_in_several_payloads_where_one_would_be_long():
    counted = [(("user_hits", (("path", f"{i:0200}"),)), float(i)) for i in range(700)]
    told = list(counts_payloads(counted, pack))
    assert len(told) == 4
    assert all(len(payload) <= COUNTS_BYTES for payload, _ in told)
    read = [unpack(payload, Counts).series for payload, _ in told]
    assert [len(series) for series in read] == [n for _, n in told]
    assert [((each.name, tuple(each.labels.items())), each.n) for series in read for each in series] == counted


def test_counts_of_labels_as_long_as_they_may_be_fit():
    labels = tuple((chr(ord("a") + i) * LONGEST_NAME, "\0" * LONGEST_VALUE) for i in range(MOST_LABELS))
    ((payload, _),) = counts_payloads([(("user_" + "a" * LONGEST_NAME, labels), 1.0)], pack_json)
    assert len(payload) <= COUNTS_BYTES
