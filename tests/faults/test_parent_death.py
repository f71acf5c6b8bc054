"""The coordinator is killed: its workers and what they started end by themselves, even in the middle of `predict`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest
from processes import in_group, running
from waiting import until_now

PROGRAM = """
    import asyncio, ctypes, multiprocessing, os, signal, subprocess, sys, threading, time
    from multiprocessing import shared_memory
    import penstock as ps

    def tell(child):
        # Not by print, whose lines a thread writes: that may not come to it before the interpreter is held.
        os.write(1, f"{os.getpid()} {child.pid}\\n".encode())

    class Busy(ps.Stage):
        def predict(self, x: str) -> int:
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            tell(child)
            if x == "sleep":
                time.sleep(1000)
            if x == "spin":
                while True:
                    pass
            if x == "share":
                memory = shared_memory.SharedMemory(create=True, size=4096)
                os.write(1, f"/dev/shm{memory._name}\\n".encode())
                for number in (signal.SIGUSR2, signal.SIGTERM):  # the second ignores a gentle end
                    signal.signal(number, signal.SIG_IGN)
                    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
                    fork.start()
                    os.write(1, f"{fork.pid}\\n".encode())
                time.sleep(1000)
            if x == "hold the interpreter":
                ctypes.PyDLL(None).sleep(1000)
            return 0

    class Loads(ps.Stage):
        def setup(self) -> None:
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            tell(child)
            time.sleep(1000)

        def predict(self, x: str) -> str:
            return x

    async def main(what: str) -> None:
        async with ps.Service(Loads if what == "setup" else Busy) as service:
            await service.predict(what)
            time.sleep(1000)

    def in_a_thread() -> None:
        with ps.Service(Busy).blocking() as service:
            service.predict("idle")
            time.sleep(1000)

    if __name__ == "__main__":
        if sys.argv[1] == "thread":
            thread = threading.Thread(target=in_a_thread)
            thread.start()
            thread.join()
        else:
            asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("what", ["sleep", "spin", "hold the interpreter", "idle", "setup", "thread"])
def test_workers_and_their_children_end_when_the_coordinator_is_killed(tmp_path, what):
    (tmp_path / "main.py").write_text(textwrap.dedent(PROGRAM))
    program = subprocess.Popen([sys.executable, "main.py", what], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        worker, child = map(int, program.stdout.readline().split())
        assert running(worker)
        assert running(child)
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
    until_now(lambda: not running(worker) and not running(child), "the worker and its child to end")
    assert not in_group(worker)


def test_what_a_tracker_gives_back_is_gone_too_and_so_is_what_ignores_a_gentle_end(tmp_path):
    (tmp_path / "main.py").write_text(textwrap.dedent(PROGRAM))
    program = subprocess.Popen([sys.executable, "main.py", "share"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        worker, child = map(int, program.stdout.readline().split())
        memory = Path(program.stdout.readline().strip())
        forks = [int(program.stdout.readline()) for _ in range(2)]
        assert memory.exists()
        assert set(in_group(worker)) > {worker, child, *forks}  # the tracker too
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
    until_now(lambda: not in_group(worker) and not memory.exists(), "the worker's group and its shared memory to go")


def test_a_coordinator_that_ends_while_its_workers_are_being_started_leaves_none(tmp_path):
    (tmp_path / "main.py").write_text(
        textwrap.dedent(
            """
            import asyncio, os
            import penstock as ps

            def double(x: int) -> int:
                return x * 2

            async def main() -> None:
                service = ps.Service(ps.stage(double, workers=3))
                start = asyncio.create_task(service.start())
                while service.engine is None or not all(w.pid for w in service.engine.stages[0].workers):
                    await asyncio.sleep(0)
                print(*[w.pid for w in service.engine.stages[0].workers], flush=True)
                os.kill(os.getpid(), 9)

            if __name__ == "__main__":
                asyncio.run(main())
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=30, check=False
    )
    assert done.returncode == -signal.SIGKILL
    workers = [int(pid) for pid in done.stdout.split()]
    assert len(workers) == 3
    until_now(lambda: not any(running(pid) for pid in workers), "the workers to end")


GROUP_PROGRAM = """
    import asyncio, os, subprocess, sys, time
    import penstock as ps

    def join(x: int) -> int:
        os.setpgid(0, os.getpgid(os.getppid()))
        return os.getpid()

    async def main() -> None:
        async with ps.Service(join) as service:
            worker = await service.predict(1)
            sibling = subprocess.Popen([sys.executable, "sibling.py"])
            print(worker, sibling.pid, flush=True)
            time.sleep(1000)

    if __name__ == "__main__":
        asyncio.run(main())
"""

SIBLING = """
import time
from pathlib import Path

while not Path("asked").exists():
    time.sleep(0.01)
Path("answered").touch()
"""


def test_a_worker_that_joined_another_group_does_not_end_that_group_with_itself(tmp_path):
    (tmp_path / "main.py").write_text(textwrap.dedent(GROUP_PROGRAM))
    (tmp_path / "sibling.py").write_text(SIBLING)
    program = subprocess.Popen(
        [sys.executable, "main.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, process_group=0
    )
    assert program.stdout is not None
    worker, sibling = map(int, program.stdout.readline().split())
    try:
        program.kill()
        program.wait()
        program.stdout.close()
        until_now(lambda: not running(worker), "the worker to end")
        (tmp_path / "asked").touch()
        until_now((tmp_path / "answered").exists, "a sign of the sibling")
        until_now(lambda: not running(sibling), "the sibling to end")
    finally:
        with suppress(ProcessLookupError):
            os.kill(sibling, signal.SIGKILL)


FORK_PROGRAM = """
    import os
    import penstock as ps

    def pid(x: int) -> int:
        return os.getpid()

    def main() -> None:
        service = ps.Service(pid)
        with service.blocking() as s:
            before = s.predict(1)
            child = os.fork()
            if child == 0:
                for worker in service.engine.stages[0].workers:
                    worker.kill()
                service.engine.abandon()
                os._exit(3)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
            print(s.predict(1) == before, service.engine.stages[0].counters.restarts, flush=True)

    if __name__ == "__main__":
        main()
"""


def test_a_forked_child_of_the_coordinator_leaves_its_workers_alone(tmp_path):
    (tmp_path / "main.py").write_text(textwrap.dedent(FORK_PROGRAM))
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=30, check=False
    )
    assert done.stdout == "True 0\n"


def test_a_worker_started_for_a_parent_that_is_not_its_own_ends_at_once():
    command = [sys.executable, "-P", "-m", "penstock.worker", "--fd", "0", "--parent", str(os.getppid()), "--"]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = subprocess.Popen([*command, "service", "stage", "0"], stdin=theirs, process_group=0)
        assert worker.wait(20) == -signal.SIGKILL
