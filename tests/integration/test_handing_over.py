"""Lines go through a thread of their own: over real pipes, with forks, and with handlers of every kind."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource
import subprocess
import sys
import textwrap
import threading

import pytest
from waiting import until_now

from penstock.hosting.line_writer import LineWriter, joined_bytes, write_all
from penstock.hosting.log_handlers import settle_record


@pytest.fixture
def pipe():
    """Both ends of a pipe of one page."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    yield read, write
    for fd in (read, write):
        with contextlib.suppress(OSError):
            os.close(fd)


@pytest.fixture
def make_writer(pipe):
    """Starts writers; what is unread at the end is read, so that their threads end."""
    made = []

    def make(**options):
        writer = LineWriter("{} dropped".format, **{"notice_fd": pipe[1], "gather": 0.0, **options})
        writer.start()
        made.append(writer)
        return writer

    yield make
    os.set_blocking(pipe[0], False)
    for writer in made:
        while not writer.end(0.02):
            with contextlib.suppress(BlockingIOError):
                os.read(pipe[0], 1 << 20)


def read_lines(fd, count):
    with os.fdopen(os.dup(fd), "rb") as file:
        return [file.readline() for _ in range(count)]


def test_everything_comes_in_the_order_it_was_handed_over(make_writer, pipe):
    writer = make_writer(gather=0.005)
    reader = threading.Thread(target=lambda: found.extend(read_lines(pipe[0], 3000)))
    found = []
    reader.start()
    for n in range(3000):
        writer.write(pipe[1], b"%d\n" % n, 4096)
    assert writer.end(20)
    reader.join()
    assert found == [b"%d\n" % n for n in range(3000)]


def test_a_full_pipe_costs_lines_and_nobody_waits(make_writer, pipe):
    # Full from the start: what the thread wrote in the middle of the loop would make room for a later line.
    full = b"%04095d\n" % 0
    os.write(pipe[1], full)
    writer = make_writer(max_bytes=50_000)
    for n in range(2000):  # nobody reads until these are over
        writer.write(pipe[1], b"%099d\n" % n, 4096)
    assert not writer.flush(0.01)
    assert not writer.end(0.01)
    assert writer.apart
    dropped = writer.backlog.dropped
    assert 1400 < dropped <= 2000 - 500
    assert writer.backlog.waiting <= 50_000
    *lines, notice = read_lines(pipe[0], 1 + 2000 - dropped + 1)
    assert lines == [full, *(b"%099d\n" % n for n in range(2000 - dropped))]
    assert notice == b"%d dropped\n" % dropped
    until_now(lambda: writer.backlog.waiting == 0)
    writer.write(pipe[1], b"again\n")
    assert read_lines(pipe[0], 1) == [b"again\n"]


def test_a_notice_stands_where_lines_are_missing(make_writer, pipe):
    writer = make_writer(max_bytes=10_000)
    held = threading.Event()
    writer.run(held.wait)
    writer.write(pipe[1], b"before\n")
    writer.write(pipe[1], b"x" * 9_991 + b"\n\n\n")
    writer.write(pipe[1], b"after\n")
    held.set()
    assert read_lines(pipe[0], 3) == [b"before\n", b"3 dropped\n", b"after\n"]


def test_lines_are_joined_for_one_write_and_no_write_to_a_pipe_is_longer_than_it_takes_whole(make_writer, tmp_path):
    packets = os.pipe2(os.O_DIRECT)  # each write is a packet of its own, up to a page
    with (tmp_path / "file").open("w") as file:
        assert (joined_bytes(packets[1]), joined_bytes(file.fileno())) == (4096, 65536)
    writer = make_writer()
    held = threading.Event()
    writer.run(held.wait)
    for n in range(100):
        writer.write(packets[1], b"%099d\n" % n, joined_bytes(packets[1]))
    held.set()
    assert [len(os.read(packets[0], 1 << 20)) for _ in range(3)] == [4000, 4000, 2000]
    for fd in packets:
        os.close(fd)


def test_a_reader_that_has_gone_and_a_closed_descriptor_cost_their_lines(make_writer, pipe):
    read, write = os.pipe()
    os.close(read)
    writer = make_writer()
    writer.write(write, b"lost\n")
    os.close(write)
    writer.write(write, b"lost too\n")
    writer.write(pipe[1], b"kept\n")
    assert read_lines(pipe[0], 1) == [b"kept\n"]
    assert writer.backlog.dropped == 2


@pytest.fixture
def disk(tmp_path):
    """A file, and a function that says how many more bytes it takes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def take(more):
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + more, before[1]))

    yield path, fd, take
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    os.close(fd)


@pytest.mark.parametrize("cut", range(14))
def test_lines_that_a_full_disk_costs_are_counted_and_told_in_a_new_line_once_there_is_room(make_writer, disk, cut):
    path, fd, take = disk
    writer = make_writer(notice_fd=fd)
    take(cut)
    writer.write(fd, b"one\ntwo\nthree\n", 4096)
    assert writer.flush(20)
    written = b"one\ntwo\nthree\n"[:cut]
    assert path.read_bytes() == written
    lost = 3 - written.count(b"\n")
    assert writer.backlog.dropped == lost
    writer.write(fd, b"four\n", 4096)
    assert writer.flush(20)
    take(1000)
    writer.write(fd, b"five\n", 4096)
    writer.write(fd, b"six\n", 4096)
    assert writer.flush(20)
    assert writer.backlog.dropped == lost + 1
    end = b"" if not written or written.endswith(b"\n") else b"\n"
    assert path.read_bytes() == written + end + b"%d dropped\nfive\nsix\n" % (lost + 1)


def test_a_notice_that_a_full_disk_cuts_is_written_again(make_writer, disk):
    path, fd, take = disk
    writer = make_writer(notice_fd=fd)
    for room in (0, 4, 3):  # one line is lost, then a notice of it is cut, then the next one
        take(room)
        writer.write(fd, b"lost\n")
        assert writer.flush(20)
    take(1000)
    writer.write(fd, b"kept\n")
    assert writer.flush(20)
    assert path.read_bytes() == b"1 dr\n2 \n3 dropped\nkept\n"


def test_a_notice_of_lines_that_found_no_room_is_not_lost_with_the_disk(make_writer, disk):
    path, fd, take = disk
    writer = make_writer(notice_fd=fd, max_bytes=1000)
    take(0)
    writer.write(fd, b"\n" * 1001)
    assert writer.flush(20)
    take(1000)
    writer.write(fd, b"kept\n")
    assert writer.flush(20)
    assert path.read_bytes() == b"1001 dropped\nkept\n"
    assert writer.backlog.dropped == 1001


def test_what_another_stream_lost_is_told_in_the_log(make_writer, disk, pipe):
    path, fd, take = disk
    writer = make_writer()
    take(0)
    writer.write(fd, b"lost\nlost\n")
    writer.write(fd, b"lost\n")
    assert writer.flush(20)
    take(1000)
    writer.write(fd, b"kept\n")
    assert read_lines(pipe[0], 1) == [b"3 dropped\n"]
    assert path.read_bytes() == b"kept\n"


def test_a_job_that_raises_ends_nothing(make_writer, pipe):
    writer = make_writer()
    writer.run(lambda: 1 / 0)
    writer.write(pipe[1], b"kept\n")
    assert read_lines(pipe[0], 1) == [b"kept\n"]


def test_a_stream_that_does_not_block_is_waited_for(pipe):
    os.set_blocking(pipe[1], False)
    thread = threading.Thread(target=write_all, args=(pipe[1], b"x" * 20_000))
    thread.start()
    got = 0
    while got < 20_000:
        got += len(os.read(pipe[0], 4096))
    thread.join()


def test_a_writer_that_has_ended_writes_at_once(make_writer, pipe):
    writer = make_writer()
    assert writer.end(20)
    writer.write(pipe[1], b"direct\n")
    assert os.read(pipe[0], 100) == b"direct\n"
    ran = []
    writer.run(lambda: ran.append(1))
    assert ran == [1]
    assert writer.flush(0)
    assert writer.end(0)


def record(message, *args, exc_info=None, **extra):
    return logging.getLogger("x").makeRecord("x", 20, "f", 1, message, args, exc_info, extra=extra)


def test_a_record_is_handed_over_as_it_is_now():
    items = [1]
    settled, _ = settle_record(record("%s", items))
    items.append(2)
    assert settled.getMessage() == "[1]"
    plain, _ = settle_record(record("%s %d", "a", 1))
    assert plain.args == ("a", 1)  # what a formatter may read
    mapped, _ = settle_record(record("%(a)s", {"a": items}))
    items.append(3)
    assert mapped.getMessage() == "[1, 2]"


def test_a_record_weighs_its_texts_and_a_traceback():
    _, light = settle_record(record("m"))
    assert settle_record(record("m" * 5000))[1] > light + 5000
    assert settle_record(record("m", body="b" * 5000))[1] > light + 4990
    try:
        raise ValueError("v")
    except ValueError:
        assert settle_record(record("m", exc_info=sys.exc_info()))[1] >= light + 64 * 1024


# -- a whole process --------------------------------------------------------------------------------------------------


def run(code, *, worker=False, begun=True, **options):
    """Run `code` while lines are handed over; its exit status, standard output and standard error."""
    begin = "begin_handing_over(str, gather=0.0)" if worker else "begin_handing_over(str, loop_thread=get_ident())"
    program = "from threading import get_ident\nfrom penstock.hosting.handing_over import *\n"
    program += f"before = __import__('sys').stdout\nlines = {begin if begun else None}\n{textwrap.dedent(code)}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, **options)
    return done.returncode, done.stdout, done.stderr


def test_the_streams_are_what_users_expect_of_them():
    status, out, err = run(
        """
        import io, sys
        assert isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout is not before
        assert sys.__stdout__ is sys.stdout and sys.__stderr__ is sys.stderr
        assert (sys.stdout.fileno(), sys.stderr.fileno()) == (1, 2)
        assert (sys.stdout.buffer.fileno(), sys.stdout.name, sys.stdout.mode) == (1, "<stdout>", "w")
        assert not sys.stdout.isatty() and sys.stdout.writable() and not sys.stdout.readable()
        assert sys.stdout.encoding == before.encoding and sys.stderr.errors == "backslashreplace"
        print("one", "two", end="")
        print("", "three", flush=True)
        sys.stdout.buffer.write(b"bytes\\n")
        sys.stdout.buffer.write(memoryview(bytearray(b"view\\n")))
        print("no end", end="", flush=True)
        print()
        print("error \\ud800", file=sys.stderr)
        sys.stdout.reconfigure(errors="replace")
        print("\\ud800")
        sys.stdout.write("last, without an end")
        lines.end()
        assert sys.stdout is before and sys.__stdout__ is before
        print(", and after")
        """
    )
    assert (status, err) == (0, "error \\ud800\n")
    assert out == "one two three\nbytes\nview\nno end\n?\nlast, without an end, and after\n"


def test_at_a_normal_exit_nothing_is_lost_that_was_handed_over_before_the_end():
    status, out, _ = run(
        """
        import atexit
        atexit.register(print, "at exit")
        for n in range(20000):
            print(n)
        assert lines.end()
        """
    )
    assert status == 0
    assert out.split("\n") == [*map(str, range(20000)), "at exit", ""]


@pytest.mark.parametrize(
    "end", ["os._exit(0)", "os.kill(os.getpid(), 9)", "ctypes.PyDLL(None).usleep(300_000); os._exit(0)"]
)
def test_in_a_worker_a_flushed_line_is_written_whatever_comes_next(end):
    # A flush waits 10 ms for the thread, which on a busy machine may get no core for as long.
    patient = "from penstock.hosting import line_writer; line_writer.FLUSH_SECONDS = 20.0; import ctypes, os, sys"
    _, out, err = run(
        f"{patient}; print('out', flush=True); print('err', file=sys.stderr, flush=True); {end}", worker=True
    )
    assert (out, err) == ("out\n", "err\n")


def test_where_nobody_reads_only_the_first_flush_waits(make_writer, pipe):
    writer = make_writer()
    writer.write(pipe[1], b"x" * 4096)
    until_now(lambda: writer.backlog.waiting == 0)
    writer.write(pipe[1], b"y")
    writer.hurry()
    flushed = []
    writer.flush = lambda within: flushed.append(within)
    for _ in range(3):
        writer.hurry()
    assert flushed == []
    os.read(pipe[0], 4096)
    until_now(lambda: writer.backlog.waiting == 0)
    writer.hurry()
    assert flushed == [0.01]


def test_at_the_exit_of_the_interpreter_everything_is_written_even_if_nobody_has_ended_it():
    status, out, err = run("for n in range(20000): print(n)\nraise ValueError('uncaught')")
    assert status == 1
    assert out.split() == [*map(str, range(20000))]
    assert err.endswith("ValueError: uncaught\n")


def test_lines_of_many_threads_are_whole():
    status, out, _ = run(
        """
        import sys, threading
        def talk(k):
            for n in range(2000):
                sys.stdout.write(f"{k} {n} {'x' * 50}\\n")
        threads = [threading.Thread(target=talk, args=(k,)) for k in range(8)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert lines.end(20)
        """
    )
    assert status == 0
    found = out.splitlines()
    assert sorted(found) == sorted(f"{k} {n} {'x' * 50}" for k in range(8) for n in range(2000))
    for k in range(8):
        assert [line for line in found if line.startswith(f"{k} ")] == [f"{k} {n} {'x' * 50}" for n in range(2000)]


@pytest.mark.parametrize("worker", [True, False])
def test_a_fork_writes_its_own_lines_and_has_the_streams_of_before(worker):
    status, out, err = run(
        """
        import logging, multiprocessing, os, sys, warnings
        warnings.simplefilter("ignore")
        ours = sys.stdout
        logging.basicConfig(level="INFO", format="%(message)s")
        logging.info("in the parent")
        def child(n):
            assert sys.stdout is before
            print("child", n)
            print("kept stream", n, file=ours)
            logging.info("logged by child %d", n)
            print("no end", n, end="")
        context = multiprocessing.get_context("fork")
        for n in range(3):
            process = context.Process(target=child, args=(n,))
            process.start(); process.join()
            assert process.exitcode == 0, process.exitcode
        if not os.fork():
            os.write(1, b"raw\\n")
            os._exit(0)
        os.wait()
        os.system("echo by a program")
        print("parent")
        lines.end()
        """,
        worker=worker,
    )
    assert status == 0, err
    for n in range(3):
        assert f"child {n}\n" in out
        assert f"kept stream {n}\n" in out
        assert f"no end {n}" in out
        assert err.count(f"logged by child {n}\n") == 1
    assert out.count("raw\n") == out.count("by a program\n") == 1
    assert out.endswith("parent\n")
    assert err.count("in the parent\n") == 1


HANDLERS = """
    import io, logging, logging.handlers, sys, threading, time
    class Own(logging.Handler):
        threads = []
        def emit(self, record):
            self.threads.append(threading.current_thread().name)
    class Slow(logging.FileHandler):
        threads = []
        def emit(self, record):
            self.threads.append(threading.current_thread().name)
            super().emit(record)
    own, slow = Own(), Slow("log")
    log = logging.getLogger("some.where")
    for handler in (own, slow):
        logging.getLogger().addHandler(handler)
    memory = io.StringIO()
    logging.getLogger().addHandler(logging.StreamHandler(memory))
    logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))
    log.warning("on this thread")
    assert memory.getvalue() == "on this thread\\n"
    other = threading.Thread(target=log.warning, args=("on another",), name="other")
    other.start(); other.join()
    assert lines.writer.flush(20)
"""


def test_a_handler_of_the_user_runs_apart_on_the_loop_only_and_a_file_always(tmp_path):
    status, _, err = run(
        HANDLERS
        + """
    apart = "penstock-line-writer"
    assert sorted(own.threads) == ["other", apart], own.threads  # the other thread does not wait for it
    assert slow.threads == [apart, apart], slow.threads
    assert open("log").read() == "on this thread\\non another\\n"
    assert lines.end()
    log.warning("after")
    assert own.threads[-1] == slow.threads[-1] == "MainThread"
    """,
        cwd=tmp_path,
    )
    assert (status, err) == (0, "on this thread\non another\nafter\n")


def test_in_a_worker_a_handler_of_the_user_sees_its_record_at_once(tmp_path):
    status, _, err = run(
        HANDLERS
        + """
    assert own.threads == ["MainThread", "other"]
    assert set(slow.threads) == {"penstock-line-writer"}
    assert lines.end()
    """,
        worker=True,
        cwd=tmp_path,
    )
    assert (status, err) == (0, "on this thread\non another\n")


def test_a_handler_with_the_stream_of_before_gets_the_other_one_and_its_own_back():
    status, _, err = run(
        """
        import logging, sys
        handler = logging.StreamHandler()
        logging.getLogger().addHandler(handler)
        for _ in range(2):
            with lines_handed_over(str):
                logging.warning("within")
                assert handler.stream is sys.stderr
                with lines_handed_over(str):
                    assert handler.stream is sys.stderr
                late = logging.StreamHandler()
            assert handler.stream is sys.stderr
            logging.getLogger().addHandler(late)  # has a stream that was put away
            with lines_handed_over(str):
                logging.warning("twice")
                assert late.stream is sys.stderr
            logging.getLogger().removeHandler(late)
        """,
        begun=False,
    )
    assert (status, err) == (0, "within\ntwice\ntwice\n" * 2)


def test_a_record_that_does_not_fit_its_message_is_reported_and_nothing_else():
    status, _, err = run(
        """
        import logging
        logging.getLogger().addHandler(logging.FileHandler("/dev/null"))
        logging.warning("%d", "no number")
        logging.warning("fine")
        assert lines.end()
        """
    )
    assert status == 0
    assert err.count("--- Logging error ---") == 1


def test_asyncio_warnings_and_the_last_resort_end_in_the_thread():
    """Standard error is full from the start, and nobody reads it."""
    read, write = os.pipe()
    code = """
    import asyncio, logging, sys, time, warnings
    logging.getLogger("nobody's").warning("w" * 100000)
    warnings.warn("w" * 100000)
    async def main():
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": "m" * 100000})
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(0.01)
    for _ in range(50):
        asyncio.run(main())
    print("x" * 100000, file=sys.stderr)
    print("served", flush=True)
    assert not lines.end(0.3)
    print("more", "x" * 100000, file=sys.stderr)
    """
    program = "from threading import get_ident\nfrom penstock.hosting.handing_over import *\n"
    program += "lines = begin_handing_over(str, loop_thread=get_ident())\n" + textwrap.dedent(code)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=write, timeout=60, check=False
        )
    finally:
        os.close(read)
        os.close(write)
    assert done.returncode == 0
