"""A service after a fork: its copy says so at once and can be dropped, and the parent's workers never notice."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import until_now

LIMIT = 30

PARENT = """
    import asyncio, atexit, contextlib, gc, multiprocessing, os, signal, sys, threading, time
    import penstock as ps
    import uvloop

    def pid(x: float) -> int:
        while x < 0 and not os.path.exists("over"):
            time.sleep(0.005)
        time.sleep(max(0.0, x))
        return os.getpid()

    KIND, HOW = sys.argv[1:3] if __name__ == "__main__" else ("", "")
    service = ps.Service(pid, name="forked")

    def expect(error, work):
        before = time.monotonic()
        try:
            found = work()
        except error as raised:
            words = f"service 'forked' was started in process {PARENT}, before a fork; start it after the fork"
            assert str(raised) == words, raised
        else:
            raise AssertionError(found)
        assert time.monotonic() - before < 20
"""

ENDS = """
    def end(how):
        if how == "os._exit":
            os._exit(0)
        if how == "sys.exit":
            sys.exit(0)
        if how == "exception":
            raise KeyError("child")
        if how == "atexit":
            atexit.register(lambda: asyncio.run(service.stop()))
            sys.exit(0)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        assert how == "return"
"""


@pytest.fixture
def script(tmp_path):
    """Runs a program of `PARENT` and more; it ends well and leaves no process."""

    def run(body, *arguments, warnings=()):
        text = textwrap.dedent(PARENT) + textwrap.dedent(ENDS) + textwrap.dedent(body)
        (tmp_path / "main.py").write_text(text)
        command = [sys.executable, *warnings, "main.py", *arguments]
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its children too; workers end with it
                raise
        assert process.returncode == 0, stdout + stderr
        return SimpleNamespace(stdout=stdout, stderr=stderr)

    return run


HOWS = ["return", "os._exit", "sys.exit", "exception", "atexit", "killed"]


@pytest.mark.parametrize(
    ("dropped", "how"),
    [*(("kept", how) for how in HOWS), ("collected", "return"), ("stopped", "return"), ("left", "return")],
)
def test_however_a_child_ends_its_parents_workers_serve_on(script, how, dropped):
    done = script(
        """
        def child(s, end_with):
            global service
            if KIND == "collected":
                service = s = None
                gc.collect()
            if KIND == "stopped":
                asyncio.run(service.stop())
                assert service.state is ps.State.STOPPED
            if KIND == "left":
                s.__exit__(None, None, None)
                assert service.state is ps.State.STOPPED
            end_with(HOW)

        def main():
            s = service.blocking()
            s.__enter__()
            before = s.predict(0)
            running = []
            thread = threading.Thread(target=lambda: running.append(s.predict(-1.0)))  # until the child is over
            thread.start()
            forked = os.fork()
            if forked == 0:
                child(s, end)
                return
            os.waitpid(forked, 0)
            open("over", "w").close()
            thread.join(20)
            assert running == [before]
            assert [s.predict(0, timeout=20) for _ in range(20)] == [before] * 20
            assert service.engine.stages[0].workers[0].restarts == 0
            s.__exit__(None, None, None)
            print("unharmed")

        if __name__ == "__main__":
            main()
        """,
        dropped,
        how,
    )
    assert done.stdout == "unharmed\n"
    assert "never stopped" not in done.stderr


@pytest.mark.parametrize(
    ("kind", "how", "inside"),
    [
        *(("uvloop", how, True) for how in HOWS),
        *(("asyncio", how, True) for how in ("return", "os._exit", "killed")),
        ("uvloop", "return", False),
        ("asyncio", "return", False),
    ],
)
def test_however_a_child_ends_the_workers_on_its_parents_loop_serve_on(script, kind, how, inside):
    done = script(
        f"""
        async def begin():
            await service.start()
            return await service.predict(0)

        async def inside():
            before = await begin()
            # What is under way while the child ends through its copy of the loop; not a frame of it may be lost.
            running = [asyncio.ensure_future(service.predict(0.01)) for _ in range(30)]
            await asyncio.sleep(0)
            forked = os.fork()
            if forked == 0:
                return end(HOW)
            os.waitpid(forked, 0)
            assert await asyncio.wait_for(asyncio.gather(*running), 20) == [before] * 30
            await finish(before)

        async def finish(before):
            assert [await service.predict(0, timeout=20) for _ in range(20)] == [before] * 20
            assert service.engine.stages[0].workers[0].restarts == 0
            await service.stop()
            print("unharmed")

        def main():
            new = asyncio.new_event_loop if KIND == "asyncio" else uvloop.new_event_loop
            if {inside}:
                with asyncio.Runner(loop_factory=new) as runner:
                    runner.run(inside())
                return
            loop = new()
            before = loop.run_until_complete(begin())
            forked = os.fork()
            if forked == 0:
                return end(HOW)
            os.waitpid(forked, 0)
            loop.run_until_complete(finish(before))

        if __name__ == "__main__":
            main()
        """,
        kind,
        how,
    )
    assert done.stdout == "unharmed\n"


@pytest.mark.smoke
def test_every_call_in_a_child_says_where_the_service_was_started(script):
    done = script(
        """
        def child(s, stream, astream, outer):
            expect(ps.ConfigError, lambda: s.predict(0, timeout=1))
            expect(ps.ConfigError, lambda: s.predict_many([0]))
            expect(ps.ConfigError, lambda: s.predict_many([]))
            expect(ps.ConfigError, lambda: list(s.stream([0])))
            expect(ps.ConfigError, lambda: next(stream))
            expect(ps.ConfigError, s.__enter__)
            expect(ps.ConfigError, service.blocking().__enter__)
            expect(ps.ConfigError, lambda: service.serve(port=0))
            assert "forked" in repr(service)
            assert service.configured(timeout=1).state is ps.State.STOPPED

        def async_calls():
            async def drained():
                return [x async for x in service.stream([0])]
            for call in (service.start, lambda: service.predict(0), lambda: service.predict_many([0]), drained):
                expect(ps.ConfigError, lambda: asyncio.run(call()))

        def main():
            s = service.blocking()
            s.__enter__()
            stream = s.stream([0] * 5)
            next(stream)
            s._thread._lock.acquire()  # as another thread may have at the moment of the fork
            forked = os.fork()
            if forked == 0:
                async_calls()
                child(s, stream, None, None)
                s.__exit__(None, None, None)
                print("child", flush=True)
                os._exit(0)
            s._thread._lock.release()
            assert os.waitpid(forked, 0)[1] == 0
            assert len(list(stream)) == 4
            s.__exit__(None, None, None)

        if __name__ == "__main__":
            PARENT = os.getpid()
            main()
        """,
        "",
        "",
        warnings=("-W", "error::RuntimeWarning"),
    )
    assert done.stdout == "child\n"
    assert "never awaited" not in done.stderr


def test_a_stream_that_goes_on_in_a_child_ends_there_and_not_in_its_parent(script):
    done = script(
        """
        async def main():
            async with service:
                stream = service.stream([0] * 10)
                await anext(stream)
                forked = os.fork()
                if forked == 0:
                    for _ in range(2):
                        try:
                            await anext(stream)
                        except ps.ConfigError as error:
                            assert "start it after the fork" in str(error)
                            os._exit(0)
                    os._exit(1)
                assert os.waitpid(forked, 0)[1] == 0
                print(len([x async for x in stream]))

        if __name__ == "__main__":
            asyncio.run(main())
        """,
        "",
        "",
    )
    assert done.stdout == "9\n"


@pytest.mark.parametrize("how", ["stop", "leave"])
def test_a_child_that_has_dropped_its_copy_starts_the_service_and_it_works(script, how):
    done = script(
        """
        def main():
            s = service.blocking()
            with contextlib.ExitStack() as stack:
                stack.enter_context(s)
                before = s.predict(0)
                forked = os.fork()
                if forked == 0:
                    if HOW == "stop":
                        asyncio.run(service.stop())
                    else:
                        stack.close()
                    with s:
                        mine = s.predict(0)
                        assert mine not in (before, os.getpid())
                        assert s.predict_many([0, 0]) == list(s.stream([0, 0])) == [mine, mine]
                    async def again():
                        async with service:
                            assert await service.predict(0) not in (before, mine)
                    asyncio.run(again())
                    os._exit(0)
                assert os.waitpid(forked, 0)[1] == 0
                assert s.predict(0) == before
            print("both")

        if __name__ == "__main__":
            main()
        """,
        "",
        how,
    )
    assert done.stdout == "both\n"


@pytest.mark.smoke
def test_a_service_that_was_stopped_before_the_fork_is_started_in_the_child_as_ever(script):
    done = script(
        """
        def main():
            with service.blocking() as s:
                s.predict(0)
            forked = os.fork()
            if forked == 0:
                try:
                    s.predict(0)
                except ps.NotReady:
                    pass
                with service.blocking() as mine:
                    mine.predict(0)
                os._exit(0)
            print(os.waitpid(forked, 0)[1])

        if __name__ == "__main__":
            main()
        """,
        "",
        "",
    )
    assert done.stdout == "0\n"


def test_a_pool_of_processes_that_fork_says_so_in_each(script):
    done = script(
        """
        def work(n):
            try:
                return s.predict(0, timeout=1)
            except ps.ConfigError as error:
                return str(error)

        if __name__ == "__main__":
            with service.blocking() as s:
                with multiprocessing.get_context("fork").Pool(2) as pool:
                    said = set(pool.map(work, range(4)))
                words = f"service 'forked' was started in process {os.getpid()}, before a fork; start it after the fork"
                assert said == {words}
                s.predict(0)
            print("said")
        """,
        "",
        "",
    )
    assert done.stdout == "said\n"


# -- gunicorn ---------------------------------------------------------------------------------------------------------

STAGE = """
    def double(x: float) -> float:
        return x * 2
"""
WSGI = """
    import penstock as ps
    from doubling import double

    service = ps.Service(double, name="doubles").blocking()
    if EARLY:
        service.__enter__()

    def app(environ, start_response):
        answer = str(service.predict(2.0, timeout=20)).encode()
        start_response("200 OK", [("Content-Length", str(len(answer)))])
        return [answer]
"""
HOOKS = """
    def post_worker_init(worker):
        if not EARLY:
            from app import service
            service.__enter__()

    def worker_exit(server, worker):
        if not EARLY:
            from app import service
            service.__exit__(None, None, None)
"""


class OverUnix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("penstock", timeout=20)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


@pytest.mark.parametrize("early", [True, False], ids=["entered at import", "entered after the fork"])
def test_gunicorn_that_loads_the_app_before_it_forks(tmp_path, early):
    for name, text in (("doubling.py", STAGE), ("app.py", WSGI), ("hooks.py", HOOKS)):
        (tmp_path / name).write_text(f"EARLY = {early}\n" + textwrap.dedent(text))
    path = str(tmp_path / "socket")
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "--preload",
        "-w",
        "2",
        "-c",
        "hooks.py",
        "-b",
        f"unix:{path}",
        "app:app",
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def text():
        return (tmp_path / "log").read_text()

    try:
        until_now(lambda: text().count("Booting worker") == 2 and Path(path).exists(), "gunicorn", context=text)
        for _ in range(6):
            connection = OverUnix(path)
            connection.request("GET", "/")
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            assert (answer.status, body if not early else b"") == ((500, b"") if early else (200, b"4.0"))
        sentence = f"service 'doubles' was started in process {process.pid}, before a fork; start it after the fork"
        assert (sentence in text()) == early
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, text()
    assert "TIMEOUT" not in text()
