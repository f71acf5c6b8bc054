"""The slabs of a service as its coordinator has them: leases, results that are read, and what each worker gets."""

from __future__ import annotations

import gc
import os
import threading

import pytest
from processes import mapped_slabs, open_files

import penstock as ps
from penstock.config import ServiceOptions
from penstock.core.payload import Handle, handle_of
from penstock.errors import ConfigError, ProtocolError
from penstock.runtime import slabs as slabs_
from penstock.runtime.slabs import NO_SLAB, Arrivals, ResultPart, ServiceSlabs, StageSlabs, open_slabs
from penstock.transport.slab import SYSTEM_PAGE_BYTES, Slab, SlabsUnavailable, open_slab_bytes

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")

PAGE = 4096
SIZE = 16 * PAGE
MOST = (1 << 64) - 1


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Time()


@pytest.fixture
def slab():
    made = Slab.make(7, SIZE)
    yield made
    made.close()


@pytest.fixture
def arrivals(slab, clock):
    return Arrivals(slab, clock)


def offsets(views):
    return [handle_of(view).offset for view in views]


# -- arrivals ---------------------------------------------------------------------------------------------------------


def test_a_piece_is_exactly_what_was_asked_for_at_the_lowest_place(arrivals):
    views = [arrivals.lease(n) for n in (1, PAGE, PAGE + 1, 5)]
    assert [view.nbytes for view in views] == [1, PAGE, PAGE + 1, 5]
    assert offsets(views) == [0, PAGE, 2 * PAGE, 4 * PAGE]
    assert arrivals.used_bytes == 5 * PAGE
    views[1] = None
    assert arrivals.used_bytes == 4 * PAGE
    views[1] = arrivals.lease(3)
    assert offsets(views) == [0, PAGE, 2 * PAGE, 4 * PAGE]
    assert all(not view.readonly for view in views)
    views.clear()
    assert arrivals.used_bytes == 0


def test_a_piece_that_is_used_again_has_another_serial_number(arrivals):
    seen = set()
    for _ in range(20):
        handle = handle_of(arrivals.lease(PAGE))
        assert (handle.slab, handle.offset) == (7, 0)
        seen.add(handle.serial)
    assert len(seen) == 20


def test_where_there_is_no_room_there_is_no_piece_until_one_ends(arrivals):
    whole = arrivals.lease(SIZE)
    assert arrivals.lease(1) is None
    part = whole[5:6]
    del whole
    assert arrivals.lease(1) is None
    del part
    assert arrivals.lease(SIZE + 1) is None
    assert arrivals.lease(SIZE).nbytes == SIZE


def test_threads_never_get_the_same_pages(arrivals):
    wrong = []
    begin = threading.Barrier(4)

    def use(mark):
        begin.wait()
        kept = []
        for i in range(1500):
            view = arrivals.lease(1 + i % (2 * PAGE))
            if view is not None:
                view[:] = bytes([mark]) * view.nbytes
                kept.append(view)
            if len(kept) > 2:
                oldest = kept.pop(0)
                if bytes(oldest) != bytes([mark]) * oldest.nbytes:
                    wrong.append(handle_of(oldest))

    threads = [threading.Thread(target=use, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert arrivals.used_bytes == 0


def test_a_lease_within_a_lease_of_the_same_thread_is_none_and_no_deadlock(slab):
    """A finalizer that the cycle collector runs in the midst of a lease may ask for a piece, too."""
    got = []

    class Now:
        asks = False

        def __call__(self):
            if self.asks:
                self.asks = False
                got.append((arrivals.lease(10), arrivals.trim(0.0, PAGE), arrivals.used_bytes))
            return 1.0

    now = Now()
    arrivals = Arrivals(slab, now)
    now.asks = True
    outer = arrivals.lease(10)
    assert got == [(None, 0, 0)]
    assert outer is not None


def test_a_fork_gets_no_piece_of_its_parent(arrivals, monkeypatch):
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)
    assert arrivals.lease(PAGE) is None
    monkeypatch.setattr(os, "getpid", lambda: here)
    assert arrivals.lease(PAGE) is not None


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def part(slab, clock):
    """The second of two parts."""
    return ResultPart(slab, 8 * PAGE, 8 * PAGE, clock)


def result(serial=1, page=0, nbytes=PAGE, number=7):
    return Handle(number, (8 + page) * PAGE, nbytes, serial)


@pytest.mark.parametrize(
    "forged",
    [
        result(number=8),
        result(number=0),
        result(number=MOST),
        result(page=-8),
        result(page=-1),
        result(page=-1, nbytes=2 * PAGE),
        result(page=8),
        result(page=7, nbytes=PAGE + 1),
        result(nbytes=8 * PAGE + 1),
        result(nbytes=0),
        result(nbytes=(1 << 63) - 1),
        Handle(7, 8 * PAGE + 1, 5, 1),
        Handle(7, 9 * PAGE - 1, 1, 1),
        Handle(7, MOST, PAGE, 1),
        Handle(7, MOST - PAGE + 1, PAGE, 1),
        Handle(7, 0, SIZE, 1),
        result(serial=0),
        result(serial=2),
        result(serial=MOST),
    ],
    ids=[
        "of the next slab", "of slab 0", "of a slab far away", "of the part before", "before its part",
        "begins before its part", "behind its part", "ends behind its part", "larger than its part", "nothing", "huge",
        "at no page", "at the end of a page", "at the largest number", "at the last page there may be",
        "the whole slab", "an old number", "a later number", "the largest number",
    ],
)  # fmt: skip
def test_a_handle_that_no_worker_of_ours_makes_is_refused(part, forged):
    with pytest.raises(ProtocolError, match="the worker sent "):
        part.read(forged)
    assert part.used_bytes == 0
    assert part.read(result(1)) is not None, "what was refused took nothing"


def test_a_result_is_named_once(part):
    view = part.read(result(1))
    with pytest.raises(ProtocolError, match="expected result 2 of slab 7, the worker sent result 1 of slab 7"):
        part.read(result(1))
    del view
    with pytest.raises(ProtocolError, match="the worker sent result 1"):
        part.read(result(1))
    assert part.released() == [1]
    assert part.read(result(2)) is not None


@pytest.mark.parametrize(("page", "nbytes"), [(2, 1), (2, PAGE), (1, PAGE + 1), (3, PAGE), (0, 8 * PAGE)])
def test_what_the_worker_was_not_told_of_is_not_named_again(part, page, nbytes):
    view = part.read(result(1, page=2, nbytes=2 * PAGE))
    with pytest.raises(ProtocolError, match="which it does not own or which are still in use"):
        part.read(result(2, page=page, nbytes=nbytes))
    del view
    with pytest.raises(ProtocolError, match="which it does not own or which are still in use"):
        part.read(result(2, page=page, nbytes=nbytes))
    assert part.released() == [1]
    assert part.read(result(2, page=page, nbytes=nbytes)) is not None


def test_the_worker_is_told_once_of_each_that_nobody_reads(part):
    views = [part.read(result(serial, page=serial)) for serial in (1, 2, 3)]
    assert not part.any_ended
    assert part.released() == []
    keep = views[1][7:9]
    views.clear()
    assert part.any_ended
    assert part.used_bytes == PAGE
    assert part.any_ended, "it is known here, and not told yet"
    assert sorted(part.released()) == [1, 3]
    assert part.released() == []
    assert not part.any_ended
    del keep
    assert part.released() == [2]


def test_a_successor_is_told_what_is_still_read_and_of_its_end(part, slab):
    inputs = Slab.make(6, 4 * PAGE)
    views = [part.read(result(serial, page=2 * serial, nbytes=5 * serial)) for serial in (1, 2, 3)]
    del views[0]
    order = part.order(inputs, 1000)
    assert (order.inputs, order.input_bytes) == (6, 4 * PAGE)
    assert (order.results, order.part_offset, order.part_bytes) == (7, 8 * PAGE, 8 * PAGE)
    assert order.held == [(12 * PAGE, 10, 2), (14 * PAGE, 15, 3)]
    assert (order.next_serial, order.least) == (4, 1000)
    assert part.released() == [], "the end of the first is nothing to a successor that never had it"
    views.clear()
    assert sorted(part.released()) == [2, 3]
    inputs.close()


def test_without_inputs_or_a_part_there_is_none_in_the_order(slab, clock):
    order = ResultPart(slab, 0, 0, clock).order(None, 1)
    assert (order.inputs, order.input_bytes, order.results, order.part_bytes) == (NO_SLAB, 0, NO_SLAB, 0)


def test_a_worker_that_died_may_have_written_anywhere(part, clock):
    part.order(None, 1)
    view = part.read(result(1, page=3))
    clock.now += 62
    assert part.idle_runs(SIZE) == [], "the first worker has told of all that it wrote, as far as is known"
    part.order(None, 1)
    clock.now += 62
    assert sorted(part.idle_runs(SIZE)) == [(8 * PAGE, 3 * PAGE), (12 * PAGE, 4 * PAGE)]
    assert bytes(view) == bytes(PAGE)


# -- those of a service -----------------------------------------------------------------------------------------------


@pytest.fixture
def make(clock):
    made = []

    def make_slabs(*workers, nbytes=SIZE):
        made.append(ServiceSlabs.make(workers, nbytes, 1000, clock))
        return made[-1]

    yield make_slabs
    for slabs in made:
        slabs.close()


def test_a_stage_reads_what_the_one_before_it_writes(make):
    slabs = make(1, 2, 3)
    first, second, third = slabs.stages
    assert first.inputs is slabs.arrivals.slab
    assert second.inputs is first.parts[0].slab
    assert third.inputs is second.parts[0].slab
    for stage, places in ((first, 1), (second, 2), (third, 3)):
        size = SIZE // places // SYSTEM_PAGE_BYTES * SYSTEM_PAGE_BYTES
        assert [(part.offset, part.nbytes) for part in stage.parts] == [(i * size, size) for i in range(places)]
        assert stage.least == 1000
    assert third.descriptors() == (second.parts[0].slab.readable, third.parts[0].slab.descriptor)
    order = third.order(2)
    assert (order.inputs, order.results) == (second.parts[0].slab.number, third.parts[0].slab.number)
    assert order.part_offset == third.parts[2].offset


def test_no_two_slabs_of_this_process_have_the_same_number(make):
    services = [make(1, 1), make(1)]
    slabs = [service.arrivals.slab for service in services]
    slabs += [stage.parts[0].slab for service in services for stage in service.stages]
    assert len({slab.number for slab in slabs}) == len(slabs) == 5


def test_workers_from_outside_have_none_and_what_they_give_is_read_from_none(make):
    slabs = make(1, 0, 2, 1)
    assert slabs.stages[1] is None
    assert slabs.stages[2].inputs is None
    assert slabs.stages[2].descriptors()[0] == -1
    assert slabs.stages[2].order(0).inputs == NO_SLAB
    assert slabs.stages[3].inputs is slabs.stages[2].parts[0].slab


def test_where_those_from_outside_are_first_there_are_no_arrivals(make):
    slabs = make(0, 1)
    assert slabs.arrivals is None
    assert slabs.stages[0] is None
    assert slabs.stages[1].inputs is None


def test_a_waiting_stage_has_none_and_what_it_gives_is_read_from_none(make):
    slabs = make(1, None, 2)
    waits, behind = slabs.stages[1:]
    assert waits == StageSlabs(None, [], 1000)
    assert waits.descriptors() == (NO_SLAB, NO_SLAB)
    assert waits.order(0) is None
    assert behind.inputs is None
    assert behind.order(0).results == behind.slab.number


def test_where_a_waiting_stage_is_first_there_are_no_arrivals(make):
    slabs = make(None, 1)
    assert slabs.arrivals is None
    assert slabs.stages[1].inputs is None


def test_more_workers_than_pages_have_no_part(make):
    (stage,) = make(17).stages
    assert {part.nbytes for part in stage.parts} == {0}
    assert stage.order(16).results == NO_SLAB


def slabs_left():
    """The files in memory that are open or mapped; threads of what earlier tests imported open sockets meanwhile."""
    return {file for file in open_files() if "memfd:penstock" in file} | mapped_slabs()


def test_however_often_they_are_made_nothing_is_left_open_or_mapped(clock):
    before = slabs_left()
    for _ in range(50):
        slabs = ServiceSlabs.make([1, 0, 2], SIZE, 1000, clock)
        view = slabs.arrivals.lease(PAGE)
        assert not slabs_left() <= before
        slabs.close()
        slabs.close()
        del slabs, view
        assert slabs_left() <= before


@pytest.mark.parametrize("left", [0, 1, 2])
def test_where_one_cannot_be_made_none_is_left(clock, monkeypatch, left):
    before = slabs_left()
    make, count = Slab.make, iter(range(10))

    def make_some(number, nbytes):
        if next(count) == left:
            raise SlabsUnavailable("no more")
        return make(number, nbytes)

    monkeypatch.setattr(Slab, "make", make_some)
    with pytest.raises(SlabsUnavailable):
        ServiceSlabs.make([1, 1], SIZE, 1000, clock)
    assert slabs_left() <= before


# -- what a service is to have ----------------------------------------------------------------------------------------


def one(x: bytes) -> bytes:
    return x


def two(x: bytes) -> bytes:
    return x


async def waits(x: bytes) -> bytes:
    return x


OURS = ps.stage(one)
WAITS = ps.stage(waits)
THEIRS = ps.remote("theirs", accepts=("raw",), item=bytes, result=bytes)


def opened(specs, clock, **options):
    slabs = open_slabs("shop", specs, ServiceOptions(**options), clock)
    if slabs is not None:
        slabs.close()
    return slabs


@pytest.mark.parametrize(
    ("specs", "many"),
    [([OURS], 2), ([OURS, ps.stage(two)], 3), ([THEIRS, OURS], 1), ([OURS, WAITS], 2), ([WAITS, OURS], 1)],
)
def test_the_slabs_of_a_service_are_all_as_large_as_was_asked(specs, many, clock, monkeypatch):
    gc.collect()  # an engine of another test may have some
    before = open_slab_bytes()
    monkeypatch.setattr(slabs_, "memory_limit", lambda: before + many * (SIZE + 5))
    slabs = opened(specs, clock, shm_bytes=SIZE + 5)
    found = [stage.slab for stage in slabs.stages if stage is not None and stage.slab is not None]
    found += [] if slabs.arrivals is None else [slabs.arrivals.slab]
    assert [slab.nbytes for slab in found] == [SIZE] * many
    with pytest.raises(ConfigError, match="shm_bytes="):
        opened(specs, clock, shm_bytes=SIZE + PAGE)


def test_services_of_one_process_share_what_there_is(clock, monkeypatch):
    gc.collect()
    before = open_slab_bytes()
    monkeypatch.setattr(slabs_, "memory_limit", lambda: before + 4 * SIZE)
    first = open_slabs("first", [OURS], ServiceOptions(shm_bytes=SIZE), clock)
    assert open_slab_bytes() == before + 2 * SIZE
    taken = f"processes included, of which slabs of other services use {before + 2 * SIZE}: set less than {SIZE},"
    with pytest.raises(ConfigError, match=taken):
        opened([OURS], clock, shm_bytes=SIZE + PAGE)
    opened([OURS], clock, shm_bytes=SIZE)
    first.close()
    first.close()
    assert open_slab_bytes() == before
    opened([OURS], clock, shm_bytes=2 * SIZE)


@pytest.mark.parametrize(
    ("specs", "options"),
    [
        ([OURS], {"shm_bytes": 0}),
        ([OURS], {"shm_bytes": PAGE - 1}),
        ([THEIRS], {}),
        ([THEIRS], {"shm_bytes": SIZE}),
        ([WAITS], {"shm_bytes": 0}),
        ([WAITS, OURS], {"shm_bytes": PAGE - 1}),
    ],
)
def test_a_service_may_have_none(specs, options, clock, caplog):
    assert opened(specs, clock, **options) is None
    assert caplog.text == ""


@pytest.mark.parametrize("options", [{}, {"shm_bytes": SIZE}])
def test_where_all_stages_wait_there_is_no_slab_and_each_knows_what_is_large(options, clock):
    before = open_slab_bytes()
    slabs = opened([WAITS, THEIRS], clock, shm_threshold=PAGE, **options)
    assert open_slab_bytes() == before
    assert (slabs.arrivals, slabs.stages) == (None, [StageSlabs(None, [], PAGE), None])


def test_a_system_without_such_memory_is_told_of_once(clock, monkeypatch, caplog):
    monkeypatch.delattr(os, "memfd_create")
    assert opened([OURS], clock, shm_bytes=SIZE) is None
    assert [record.getMessage() for record in caplog.records] == [
        (
            "service 'shop': shared memory is not available, large payloads are copied instead: this system has no "
            "memfd_create"
        )
    ]
