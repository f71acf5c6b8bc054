"""Shared memory: who may write and map it, whose views hold a piece, and what is left where it cannot be had."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import mmap
import os
import random
import threading

import numpy as np
import pytest
from processes import mapped_slabs, open_files

from penstock.core.payload import Handle, handle_of
from penstock.transport import forks, slab
from penstock.transport.slab import ReadableSlab, Slab, SlabsUnavailable, give_back_pages
from penstock.transport.slab_pieces import Pieces, whole_pages

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")

PAGE = 4096
SIZE = 16 * PAGE


def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.fixture
def made():
    """A slab of 16 pages, which is closed at the end."""
    slab_of_16 = Slab.make(7, SIZE)
    yield slab_of_16
    slab_of_16.close()


@pytest.fixture(scope="module")
def libc():
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return library


def handle(offset, nbytes, serial=1, number=7):
    return Handle(number, offset, nbytes, serial)


# -- the memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, PAGE, SIZE - 1, SIZE + PAGE])
def test_no_process_can_change_its_size(made, nbytes):
    with pytest.raises(PermissionError):
        os.ftruncate(made.descriptor, nbytes)
    assert os.fstat(made.descriptor).st_size == SIZE


def test_no_process_can_seal_it_further(made):
    with pytest.raises(PermissionError):
        fcntl.fcntl(made.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_the_descriptor_for_readers_can_be_written_to_in_no_way(made, libc):
    with pytest.raises(PermissionError):
        mmap.mmap(made.readable, SIZE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(made.readable, b"x")
    address = libc.mmap(None, SIZE, mmap.PROT_READ, mmap.MAP_SHARED, made.readable, 0)
    assert address != ctypes.c_void_p(-1).value
    assert libc.mprotect(address, SIZE, mmap.PROT_READ | mmap.PROT_WRITE) == -1
    assert ctypes.get_errno() == errno.EACCES
    libc.munmap(address, SIZE)


def test_what_is_started_inherits_neither_descriptor_unless_it_is_passed(made):
    assert not os.get_inheritable(made.descriptor)
    assert not os.get_inheritable(made.readable)


def test_closing_it_closes_both_descriptors_once():
    made = Slab.make(7, SIZE)
    descriptors = [made.descriptor, made.readable]
    assert made.own_descriptors() == descriptors
    made.close()
    made.close()
    assert not any(map(is_open, descriptors))
    assert made.own_descriptors() == []


def test_views_are_good_after_it_was_closed():
    made = Slab.make(7, SIZE)
    view = Pieces(made.memory).view(handle(PAGE, 5))
    view[:] = b"stays"
    made.close()
    del made
    assert bytes(view) == b"stays"
    view[:1] = b"S"
    assert bytes(view) == b"Stays"


def test_nothing_is_open_or_mapped_once_it_and_its_views_are_gone():
    before = open_files()
    maps = mapped_slabs()
    made = Slab.make(7, SIZE)
    view = Pieces(made.memory).view(handle(0, 5))
    made.close()
    del made
    assert len(mapped_slabs() - maps) == 1
    del view
    assert open_files() <= before
    assert mapped_slabs() <= maps


def test_a_slab_that_nobody_has_closed_leaves_no_descriptor():
    before = open_files()
    Slab.make(7, SIZE)
    assert open_files() <= before


@pytest.mark.parametrize("begin", [0, 3])
def test_pages_that_are_given_back_are_zeros_for_every_reader(made, begin):
    readable = ReadableSlab(made.readable, SIZE)
    view = Pieces(made.memory).view(handle(0, SIZE))
    view[:] = b"x" * SIZE
    before = os.fstat(made.descriptor).st_blocks
    made.give_back(begin * PAGE, 2 * PAGE)
    assert os.fstat(made.descriptor).st_blocks == before - 2 * PAGE // 512
    expected = bytearray(b"x" * SIZE)
    expected[begin * PAGE : (begin + 2) * PAGE] = bytes(2 * PAGE)
    assert view == expected
    assert readable.view(handle(0, SIZE))[0] == expected


def test_pages_of_the_system_are_given_back_as_far_as_they_are_in_the_range_wholly(monkeypatch):
    """Where a page of the system is larger than the allocator's."""
    monkeypatch.setattr(slab, "SYSTEM_PAGE_BYTES", 4 * PAGE)
    given = []

    class Map:
        def madvise(self, how, begin, nbytes):
            assert how == mmap.MADV_REMOVE
            given.append((begin, nbytes))

    for offset, nbytes in ((0, SIZE), (PAGE, SIZE - PAGE), (PAGE, 6 * PAGE), (PAGE, 7 * PAGE), (0, 3 * PAGE)):
        give_back_pages(Map(), offset, nbytes)
    assert given == [(0, SIZE), (4 * PAGE, 12 * PAGE), (4 * PAGE, 4 * PAGE)]


def test_whole_pages_are_counted_up():
    assert [whole_pages(n) for n in (1, PAGE, PAGE + 1)] == [PAGE, PAGE, 2 * PAGE]


# -- where it cannot be had -------------------------------------------------------------------------------------------


def fails(number):
    def fail(*_args, **_how):
        raise OSError(number, os.strerror(number), "what it was")

    return fail


def test_a_system_without_memfd_has_no_slabs(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(SlabsUnavailable, match="this system has no memfd_create"):
        Slab.make(7, SIZE)


@pytest.mark.parametrize(
    ("where", "what"),
    [("os", "memfd_create"), ("os", "ftruncate"), ("fcntl", "fcntl"), ("os", "open"), ("mmap", "mmap")],
)
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EPERM, errno.ENOENT, errno.ENOMEM, errno.EINVAL])
def test_whatever_step_the_system_refuses_nothing_is_left_open(monkeypatch, where, what, number):
    before = open_files()
    with monkeypatch.context() as patched:
        patched.setattr({"os": os, "fcntl": fcntl, "mmap": mmap}[where], what, fails(number))
        with pytest.raises(SlabsUnavailable, match=os.strerror(number)):
            Slab.make(7, SIZE)
    assert open_files() <= before


def test_the_error_says_what_was_refused(monkeypatch):
    def no_proc(path, *_):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    monkeypatch.setattr(os, "open", no_proc)
    with pytest.raises(SlabsUnavailable, match=r"^/proc/self/fd/\d+: No such file or directory$"):
        Slab.make(7, SIZE)
    monkeypatch.setattr(os, "memfd_create", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no")))
    with pytest.raises(SlabsUnavailable, match=r"^the memory: no$"):
        Slab.make(7, SIZE)


def test_a_map_that_the_system_refuses_is_its_error(made):
    with pytest.raises(OSError, match="Bad file descriptor"):
        ReadableSlab(10_000, SIZE)
    with pytest.raises(OSError, match="Invalid argument"):
        ReadableSlab(made.readable, 0)


# -- pieces -----------------------------------------------------------------------------------------------------------


def test_a_view_is_exactly_what_its_handle_names_and_can_be_written_to(made):
    pieces = Pieces(made.memory)
    ones, twos = pieces.view(handle(0, PAGE + 1)), pieces.view(handle(2 * PAGE, 3, 2))
    assert (len(ones), ones.nbytes, ones.format, ones.readonly) == (PAGE + 1, PAGE + 1, "B", False)
    ones[:] = b"1" * (PAGE + 1)
    twos[:] = b"222"
    assert made.memory[: 2 * PAGE + 5] == b"1" * (PAGE + 1) + bytes(PAGE - 1) + b"222\0\0"
    assert [(h.offset, h.nbytes, h.serial) for h in pieces.in_use()] == [(0, PAGE + 1, 1), (2 * PAGE, 3, 2)]
    assert handle_of(ones) is pieces.in_use()[0]


def test_a_piece_has_ended_when_its_last_view_is_gone(made):
    pieces = Pieces(made.memory)
    named = handle(PAGE, 100)
    view = pieces.view(named)
    held = [
        view[10:20],
        view.toreadonly(),
        np.frombuffer(view, np.uint8),
        np.frombuffer(view, np.uint8).reshape(10, 10)[3],
        memoryview(np.frombuffer(view, np.uint8)),
        view.cast("I"),
    ]
    view.release()
    del view
    random.Random(1).shuffle(held)
    while held:
        assert not pieces.any_ended
        assert pieces.ended() == []
        assert pieces.in_use() == [named]
        held.pop()
    assert pieces.any_ended
    assert pieces.in_use() == [named], "nobody has asked yet what has ended"
    assert pieces.ended() == [named]
    assert pieces.ended() == []
    assert pieces.in_use() == []
    assert not pieces.any_ended


def test_one_that_has_ended_can_be_named_again_and_is_told_of_each_time(made):
    pieces = Pieces(made.memory)
    for serial in range(50):
        named = handle(0, PAGE, serial)
        view = pieces.view(named)
        assert handle_of(view) is named
        del view
        assert pieces.ended() == [named]


def test_an_end_in_any_thread_is_told_once(made):
    pieces = Pieces(made.memory)
    views = [pieces.view(handle(i % 16 * PAGE, 10, i)) for i in range(4000)]
    ended = []
    shares = [views[i::4] for i in range(4)]
    del views
    begin = threading.Barrier(5)

    def let_go(share):
        begin.wait()
        while share:
            share.pop()

    threads = [threading.Thread(target=let_go, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    begin.wait()
    while any(thread.is_alive() for thread in threads):
        ended += pieces.ended()
    for thread in threads:
        thread.join()
    ended += pieces.ended()
    assert sorted(h.serial for h in ended) == list(range(4000))
    assert pieces.in_use() == []


def test_a_piece_in_a_cycle_ends_when_the_collector_has_run(made):
    pieces = Pieces(made.memory)
    cycle = [pieces.view(handle(0, 10))]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert len(pieces.ended()) == 1


# -- the reader's map -------------------------------------------------------------------------------------------------


def test_a_reader_sees_what_is_written_and_cannot_write(made):
    readable = ReadableSlab(made.readable, SIZE)
    writing = Pieces(made.memory).view(handle(3 * PAGE, 5))
    writing[:] = b"first"
    view, reference = readable.view(handle(3 * PAGE, 5))
    assert (bytes(view), view.readonly, view.format) == (b"first", True, "B")
    writing[:] = b"later"
    assert bytes(view) == b"later"
    with pytest.raises(TypeError, match="cannot modify read-only memory"):
        view[0] = 1
    array = np.frombuffer(view, np.uint8)
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
        array.flags.writeable = True
    del view
    assert reference() is not None
    del array
    assert reference() is None


def test_the_map_is_good_after_the_descriptor_was_closed():
    made = Slab.make(7, SIZE)
    readable = ReadableSlab(made.readable, SIZE)
    Pieces(made.memory).view(handle(0, 4))[:] = b"kept"
    made.close()
    assert bytes(readable.view(handle(0, 4))[0]) == b"kept"


# -- forks ------------------------------------------------------------------------------------------------------------


def in_fork(look):
    """What `look` returns in a fork of this process, as bytes."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, look())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        told = answer.read()
    os.waitpid(pid, 0)
    return told


def test_a_fork_can_do_nothing_by_the_descriptors(made):
    def look():
        modes = [os.fstat(descriptor).st_mode for descriptor in (made.descriptor, made.readable)]
        return repr([oct(mode >> 12) for mode in modes]).encode()

    socket_mode = "0o14"
    assert in_fork(look) == repr([socket_mode, socket_mode]).encode()
    assert os.fstat(made.descriptor).st_size == SIZE
    assert made in forks._owners


def test_what_a_fork_lets_go_of_is_not_free_here(made):
    pieces = Pieces(made.memory)
    views = [pieces.view(handle(0, 10))]

    def look():
        views.clear()
        return str(len(pieces.ended())).encode()

    assert in_fork(look) == b"1"
    assert pieces.ended() == []
    assert len(pieces.in_use()) == 1


def test_a_system_that_takes_no_pages_back_is_asked_again_and_harms_nobody(made):
    """Locked memory cannot be given back; a system that imitates Linux may not know how."""
    made.memory[: 2 * PAGE] = b"x" * 2 * PAGE
    address = ctypes.addressof(ctypes.c_char.from_buffer(made.memory))
    library = ctypes.CDLL(None, use_errno=True)
    library.mlock.argtypes = library.munlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    assert library.mlock(address, PAGE) == 0
    assert made.refusal is None
    made.give_back(0, 2 * PAGE)
    assert made.refusal.errno == errno.EINVAL
    assert made.memory[:PAGE] == b"x" * PAGE
    assert library.munlock(address, PAGE) == 0
    made.give_back(0, 2 * PAGE)
    assert made.memory[: 2 * PAGE] == bytes(2 * PAGE)
    assert made.refusal.errno == errno.EINVAL, "it is told of once, by whoever asks next"
