"""What every worker must do: a suite that plays the coordinator, for workers in any language.

    for verdict in run_worker_suite(CommandWorker(["node", "worker.mjs"]), SuiteTerms(stage="square")):
        assert not verdict.problem, verdict

or, with pytest, `check_worker` for each of `WORKER_CHECKS`.  `penstock worker test` runs it over any command.

Each check starts a worker of its own, and ends it.  The worker must have a stage that is known, of squares, which
answers

* a number by its square, and a list of numbers by the list of their squares, however large;
* whatever else there is, as a text, null, or bytes that cannot be read, as INVALID, with a message;
* the number -1 as FAILED, with a message: there the model fails.

It is spoken to in JSON, in MessagePack, or in both.  The page on the protocol says why it must do what is checked here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.errors import ProtocolError
from penstock.testing.worker_case import (
    Ability,
    CheckFailed,
    CheckSkipped,
    NoWorker,
    Sent,
    SuiteTerms,
    WorkerCase,
    WorkerUnderTest,
    batch_bytes,
    check_version,
    open_case,
)
from penstock.transport.external_messages import codecs_of
from penstock.transport.framing import Kind, Status, encode_control

MANY_NUMBERS: Final = 60_000
"""In a list of so many numbers are more bytes than a worker is likely to read at once: over 256 KiB."""
SMALL_BODY: Final = 16 * 1024
CHECK_ID: Final = 77
LAST_WORDS_SECONDS: Final = 0.5
"""A worker that fails a check has so long to say why, if it is about to end."""


@dataclass(frozen=True)
class WorkerCheck:
    """One thing that a worker must do."""

    name: str
    sentence: str
    run: Callable[[WorkerCase], None]
    """Raises CheckFailed where the worker does not do it, CheckSkipped where it need not."""
    needs: frozenset[Ability]


@dataclass(frozen=True)
class CheckVerdict:
    """What became of a check: all is well if neither `problem` nor `skipped` says something."""

    check: WorkerCheck
    problem: str = ""
    skipped: str = ""


WORKER_CHECKS: list[WorkerCheck] = []
"""All checks, in the order in which they are run."""


def check_worker(check: WorkerCheck, worker: WorkerUnderTest, terms: SuiteTerms) -> None:
    """Run one check over a worker.

    Raises:
        CheckFailed: the worker does not do what is asked.
        CheckSkipped: it need not.
    """
    for ability in Ability:
        if ability in check.needs and ability not in worker.abilities:
            raise CheckSkipped(ability.value)
    with open_case(worker, terms) as case:
        try:
            check.run(case)
        except CheckFailed as error:
            worker.wait(LAST_WORDS_SECONDS)
            worker.stop()
            words = worker.last_words()
            raise type(error)(f"{error}\n{words}" if words else str(error)) from None


def run_worker_suite(
    worker: WorkerUnderTest, terms: SuiteTerms, checks: Sequence[WorkerCheck] | None = None
) -> Iterator[CheckVerdict]:
    """Run `checks`, by default all, and say of each what became of it.

    Where the first one finds no worker, the others are skipped: they would all wait for it in vain.
    """
    met, missing = False, False
    for check in WORKER_CHECKS if checks is None else checks:
        if missing:
            yield CheckVerdict(check, skipped="there is no worker to check")
            continue
        try:
            check_worker(check, worker, terms)
        except CheckFailed as error:
            missing = isinstance(error, NoWorker) and not met
            met = True
            yield CheckVerdict(check, problem=str(error))
        except CheckSkipped as why:
            yield CheckVerdict(check, skipped=str(why))
        else:
            met = True
            yield CheckVerdict(check)


def _check(*needs: Ability) -> Callable[[Callable[[WorkerCase], None]], Callable[[WorkerCase], None]]:
    """Add a function to the checks: its name is theirs, its docstring their sentence."""

    def add(run: Callable[[WorkerCase], None]) -> Callable[[WorkerCase], None]:
        sentence = " ".join((run.__doc__ or "").split()).removesuffix(".")
        WORKER_CHECKS.append(WorkerCheck(run.__name__.replace("_", "-"), sentence, run, frozenset(needs)))
        return run

    return add


# -- the handshake ----------------------------------------------------------------------------------------------------


@_check(Ability.OUTSIDE)
def hello(case: WorkerCase) -> None:
    """It connects and says HELLO: the version, its pid, its language, its stage, and the formats that it knows."""
    said = case.greeted().hello
    check_version(said.version)
    if said.pid <= 0:
        raise CheckFailed(f"expected its pid in HELLO, got {said.pid}")
    if not said.language:
        raise CheckFailed("expected its language in HELLO, as 'python', got none")
    if said.stage is not None and said.stage != case.terms.stage:
        raise CheckFailed(f"expected the stage {case.terms.stage!r} in HELLO, or none, got {said.stage!r}")
    lacks = sorted(codec.name.lower() for codec in set(case.terms.codecs) - codecs_of(said.codecs))
    if lacks:
        raise CheckFailed(f"expected {' and '.join(lacks)} among the codecs in HELLO, got {list(said.codecs)}")


@_check()
def late_launch(case: WorkerCase) -> None:
    """It waits for a LAUNCH that comes late and in pieces, says nothing before, and then READY."""
    peer = case.greeted()
    peer.expect_quiet("for a LAUNCH that comes late")
    launch = peer.launch_bytes(case.terms)
    peer.send_apart([launch[i : i + 1] for i in range(len(launch))])
    peer.expect_ready()
    peer.run(1, [case.number(3)])


@_check(Ability.OUTSIDE)
def unknown_fields(case: WorkerCase) -> None:
    """It ignores a field of LAUNCH that it does not know."""
    peer = case.greeted()
    payload = peer.launch_bytes(case.terms)[_HEADER_BYTES:]
    more = payload.removesuffix(b"}") + b',"of_a_later_version":{"deep":[1]}}'
    peer.send(encode_control(Kind.LAUNCH, more)[0])
    peer.expect_ready()
    peer.run(1, [case.number(3)])


@_check(Ability.OUTSIDE, Ability.PROCESS)
def turned_away(case: WorkerCase) -> None:
    """Where its HELLO is answered by FAILED it ends, with another status than 0."""
    peer = case.greeted()
    peer.send(encode_control(Kind.FAILED, b'{"message":"the suite refuses it"}')[0])
    peer.end()
    case.expect_exit("after FAILED", _is_failure, "another status than 0")


@_check(Ability.OUTSIDE, Ability.PROCESS)
def cut_off(case: WorkerCase) -> None:
    """Where FAILED comes while it works it ends too, with another status than 0."""
    peer = case.ready()
    peer.run(1, [case.number(3)])
    peer.send(encode_control(Kind.FAILED, b'{"message":"the suite cuts it off"}')[0])
    peer.end()
    case.expect_exit("after FAILED", _is_failure, "another status than 0")


# -- batches ----------------------------------------------------------------------------------------------------------


@_check()
def batch_of_one(case: WorkerCase) -> None:
    """It answers batches of one item, one after the other."""
    peer = case.ready()
    for i in range(20):
        peer.run(i, [case.number(i)], first_id=1000 + i)


@_check()
def full_batch(case: WorkerCase) -> None:
    """It answers a batch of `max_size` items, each by its own result and id, in order; also where ids need 64 bits."""
    peer = case.ready()
    peer.run(1, [case.number(i) for i in range(case.terms.max_size)])
    peer.run(2**63 + 1, [case.number(i) for i in range(case.terms.max_size)], first_id=2**53 + 1)


@_check()
def no_bytes(case: WorkerCase) -> None:
    """An item of 0 bytes is INVALID, alone and between others, which are answered."""
    peer = case.ready()
    peer.run(1, [case.no_bytes()])
    peer.run(2, [case.number(2), case.no_bytes(), case.number(3)])


@_check()
def invalid_in_place(case: WorkerCase) -> None:
    """An item that is not valid is INVALID in its place, with a message; the others are answered."""
    peer = case.ready()
    broken = Sent(b"\xc1", case.no_bytes().status, codec_in=case.codec(), codec_out=case.codec())
    peer.run(1, [case.number(2), case.invalid("two"), case.invalid(None), broken, case.number(3)])
    peer.run(2, [case.number(4)])


@_check()
def failed_in_place(case: WorkerCase) -> None:
    """An item at which the model fails is FAILED in its place, with a message; the others are answered."""
    peer = case.ready()
    peer.run(1, [case.number(2), case.failing(), case.number(3)])
    peer.run(2, [case.failing()])
    peer.run(3, [case.number(4)])


@_check()
def expired_unrun(case: WorkerCase) -> None:
    """An item whose time has passed is not run: EXPIRED in its place, counted from the `seconds` of the frame."""
    peer = case.ready()
    peer.run(1, [case.number(2), case.expired(), case.number(3, remaining=float("inf")), case.expired(remaining=0.0)])
    long_ago = time.monotonic() - 100
    peer.run(2, [case.expired(remaining=60), case.number(3, remaining=1000)], sent=long_ago)
    peer.run(3, [case.expired()])


@_check()
def codecs_per_item(case: WorkerCase) -> None:
    """Each item is read in its own format, and answered in the one that is asked for with it."""
    peer = case.ready()
    pairs = [(one, other) for one in case.terms.codecs for other in case.terms.codecs]
    items = [case.number(i + 300, codec_in=one, codec_out=other) for i, (one, other) in enumerate(pairs)]
    items += [case.number(i + 0.5, codec_in=one, codec_out=other) for i, (one, other) in enumerate(pairs)]
    for begin in range(0, len(items), case.terms.max_size):
        part = items[begin : begin + case.terms.max_size]
        peer.run(begin, part, first_id=begin)


@_check()
def request_ids(case: WorkerCase) -> None:
    """It answers batches whose items have the ids of their requests, which lie before the payloads."""
    peer = case.ready()
    items = [case.number(2), case.number(3), case.number(4)]
    for frame_id, text in enumerate([b"first  third", b"", b"bulk:0+2 x", b"a" * 5000]):
        peer.run(frame_id, items, request_ids=text)


@_check()
def large_payloads(case: WorkerCase) -> None:
    """It reads and writes payloads of 1 KiB to over 256 KiB, which begin at multiples of 64."""
    peer = case.ready()
    sizes = [1, 200, 1, MANY_NUMBERS, 400, 1]
    items = [case.number([size + i for i in range(size)]) for size in sizes]
    begin = 0
    while begin < len(items):
        part = items[begin : begin + case.terms.max_size]
        peer.run(begin, part, request_ids=b"odd")
        begin += len(part)


@_check(Ability.OUTSIDE)
def max_body(case: WorkerCase) -> None:
    """An answer that would be longer than `max_body` fails its item; the next batch is answered."""
    peer = case.greeted()
    peer.send(peer.launch_bytes(case.terms, SMALL_BODY))
    peer.expect_ready()
    peer.run(1, [replace(case.number(list(range(SMALL_BODY))), status=Status.FAILED)])
    peer.run(2, [case.number(3)])


@_check()
def cut_anywhere(case: WorkerCase) -> None:
    """It reads a frame whole, wherever the bytes of the frame are cut, and however many come at a time."""
    peer = case.ready()
    items = [case.number(2), case.invalid("x"), case.number(300)][: case.terms.max_size]
    whole = batch_bytes(0, items, request_ids=b"a b c")
    peer.send_apart([whole[i : i + 1] for i in range(len(whole))])
    peer.expect_answers(0, items)
    for cut in range(1, len(whole)):
        data = batch_bytes(cut, items, request_ids=b"a b c")
        peer.send_apart([data[:cut], data[cut:]])
        peer.expect_answers(cut, items)


@_check()
def frames_at_once(case: WorkerCase) -> None:
    """It answers frames that come at once one after the other, in their order; also one and a half, then the rest."""
    peer = case.ready()
    batches = {i: [case.number(i), case.number(i + 1)][: case.terms.max_size] for i in range(1, 6)}
    data = [batch_bytes(i, items) for i, items in batches.items()]
    peer.send(b"".join(data[:3]))
    for i in (1, 2, 3):
        peer.expect_answers(i, batches[i])
    half = len(data[4]) // 2
    peer.send_apart([data[3] + data[4][:half], data[4][half:]])
    for i in (4, 5):
        peer.expect_answers(i, batches[i])


@_check()
def health(case: WorkerCase) -> None:
    """If its HELLO says `health`, it answers CHECK by CHECKED, with the same id and an empty payload."""
    peer = case.greeted()
    if Ability.OUTSIDE in case.worker.abilities and not peer.hello.health:
        raise CheckSkipped("its HELLO does not have `health`")
    case.make_ready(peer)
    items = [case.number(3)]
    peer.send(batch_bytes(1, items) + encode_control(Kind.CHECK, b"", CHECK_ID)[0])
    peer.expect_answers(1, items)
    frame = peer.expect(Kind.CHECKED, "to answer CHECK by CHECKED")
    if frame.frame_id != CHECK_ID:
        raise CheckFailed(f"expected CHECKED with the id of its CHECK, {CHECK_ID}, got {frame.frame_id}")
    payload = bytes(frame.payloads[0])
    if payload:
        raise CheckFailed(f"expected a healthy stage; CHECKED reports: {_problem(case, payload)}")


# -- ends -------------------------------------------------------------------------------------------------------------


@_check()
def end_of_stream(case: WorkerCase) -> None:
    """At the end of the stream it answers all that it was sent, and closes."""
    peer = case.ready()
    batches = {i: [case.number(i)] for i in range(1, 4)}
    peer.send(b"".join(batch_bytes(i, items) for i, items in batches.items()))
    peer.end()
    for i, items in batches.items():
        peer.expect_answers(i, items)
    peer.expect_end("at the end of the stream, once it has answered")


@_check(Ability.OUTSIDE, Ability.PROCESS)
def detach_while_idle(case: WorkerCase) -> None:
    """Asked to leave by SIGTERM it sends DETACH, waits for the end of the stream, closes, and ends with status 0."""
    peer = case.ready()
    peer.run(1, [case.number(3)])
    case.worker.ask_to_leave()
    peer.expect(Kind.DETACH, "to send DETACH after SIGTERM")
    peer.expect_quiet("for the end of the stream, after DETACH")
    peer.end()
    peer.expect_end("once it has left")
    case.expect_exit("once it has left", _is_success, "status 0")


@_check(Ability.OUTSIDE, Ability.PROCESS)
def detach_while_busy(case: WorkerCase) -> None:
    """Asked to leave while it has batches, one of them not whole, it sends DETACH, answers all, closes, and ends with
    status 0.
    """
    peer = case.ready()
    batches = {i: [case.number(list(range(2000)))] for i in range(1, 4)}
    data = [batch_bytes(i, items) for i, items in batches.items()]
    half = len(data[2]) // 2
    peer.send(data[0] + data[1] + data[2][:half])
    case.worker.ask_to_leave()
    answered = 0
    detached = False
    while not detached or answered < len(batches):
        if answered < 2 and detached:
            expected = "to answer, after DETACH, the batches that it was sent"
        else:
            expected = "to send DETACH after SIGTERM" if not detached else "to answer the batch that came after DETACH"
        frame = peer.peek(expected)
        if frame is not None and frame.kind is Kind.DETACH and not detached:
            peer.expect(Kind.DETACH, expected)
            detached = True
            peer.send(data[2][half:])  # it was on its way already
            peer.end()
            continue
        answered += 1
        peer.expect_answers(answered, batches.get(answered, []))
    peer.expect_end("once it has answered")
    case.expect_exit("once it has left", _is_success, "status 0")


@_check(Ability.RECONNECTS)
def drained(case: WorkerCase) -> None:
    """After the end of the stream it connects again, and is ready again."""
    peer = case.ready()
    peer.run(1, [case.number(3)])
    peer.end()
    peer.expect_end("at the end of the stream")
    again = case.make_ready(case.accept("to connect again after the end of the stream"))
    again.run(1, [case.number(4)])


@_check(Ability.RECONNECTS)
def server_gone_and_back(case: WorkerCase) -> None:
    """While the server is gone it tries again; it drops what it held, the half of a frame too, and starts anew."""
    case.worker.start(case.path)
    case.expect_patience()
    case.listen()
    peer = case.make_ready(case.accept("to connect once a server is there"))
    peer.send(batch_bytes(1, [case.number(list(range(2000)))]) + batch_bytes(2, [case.number(5)])[:50])
    case.go_away()
    case.expect_patience()
    case.listen()
    again = case.make_ready(case.accept("to connect again once the server is back"))
    again.expect_quiet("for a batch on its new connection")
    again.run(1, [case.number(4)])


_HEADER_BYTES: Final = len(encode_control(Kind.READY, b"")[0])


def _is_success(status: int) -> bool:
    return status == 0


def _is_failure(status: int) -> bool:
    return status > 0


def _problem(case: WorkerCase, payload: bytes) -> str:
    try:
        return case.worker.dialect.read_failure(payload).message
    except ProtocolError as error:
        return str(error)
