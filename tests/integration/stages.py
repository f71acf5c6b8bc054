"""Stages for tests with real workers.  Worker processes import this module, so it needs nothing of the tests.

`act` does what an item says, so that one stage serves many tests; the stages with a folder leave notes in it and can
be held until the test opens their gate.
"""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from notes_and_gates import note, wait_for

import penstock as ps

# -- plain ----------------------------------------------------------------------------------------------------------


class Echo(ps.Stage):
    def predict(self, x: Any) -> Any:
        return x


class EchoBatch(ps.Stage):
    batch = ps.Batch(max_size=32)

    def predict(self, xs: list[Any]) -> list[Any]:
        return xs


class Double(ps.Stage):
    def predict(self, x: int) -> int:
        return x * 2


class AddOneBatch(ps.Stage):
    batch = ps.Batch(max_size=16)

    def predict(self, xs: list[int]) -> list[int]:
        return [x + 1 for x in xs]


def sizes(xs: list[Any]) -> list[int]:
    return [len(xs)] * len(xs)


def faults_of_copies(body: bytes) -> int:
    """How many page faults 80 copies of `body` cost, eight at a time, once there have been as many."""
    copies: list[Any] = [None] * 8
    view = memoryview(body)
    before = 0
    for turn in range(20):
        if turn == 10:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for i in range(8):
            copies[i] = bytes(view)
        for i in range(8):
            copies[i] = None
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


# -- notes and gates --------------------------------------------------------------------------------------------------


class Gated(ps.Stage):
    """Notes each item it runs in `folder`/ran and each end in `folder`/done; waits for `folder`/open between them."""

    def setup(self, folder: str) -> None:
        self.folder = Path(folder)

    def predict(self, x: Any) -> Any:
        note(self.folder / "ran", x)
        wait_for(self.folder / "open")
        note(self.folder / "done", x)
        return x

    def teardown(self) -> None:
        note(self.folder / "torn down", self.worker.index)


class Held(ps.Stage):
    """Answers nothing before `folder`/open is there, and notes nothing."""

    def setup(self, folder: str) -> None:
        self.gate = Path(folder) / "open"

    def predict(self, x: Any) -> Any:
        wait_for(self.gate)
        return x


class Marked(ps.Stage):
    """Notes each beginning of an item, and each end, in `folder`/marks; waits for `folder`/open between them."""

    def setup(self, folder: str) -> None:
        self.folder = Path(folder)

    def predict(self, x: Any) -> Any:
        note(self.folder / "marks", 1)
        wait_for(self.folder / "open")
        note(self.folder / "marks", -1)
        return x


class Lamp(ps.Stage):
    """It is not well while `folder`/out is there, and does not say how it is while `folder`/dark is."""

    def setup(self, folder: str) -> None:
        self.folder = Path(folder)

    def predict(self, x: Any) -> Any:
        return x

    def health(self) -> None:
        note(self.folder / "asked", 1)
        while (self.folder / "dark").exists():
            time.sleep(0.01)
        if (self.folder / "out").exists():
            raise RuntimeError("the lamp is out")


class GatedBatch(ps.Stage):
    """As `Gated`, noting whole batches."""

    batch = ps.Batch(max_size=4)

    def setup(self, folder: str) -> None:
        self.folder = Path(folder)

    def predict(self, xs: list[Any]) -> list[Any]:
        note(self.folder / "ran", xs)
        wait_for(self.folder / "open")
        return xs


class Noting(ps.Stage):
    """Notes what it runs."""

    def setup(self, folder: str, name: str = "ran") -> None:
        self.notes = Path(folder) / name

    def predict(self, x: Any) -> Any:
        note(self.notes, x)
        return x


# -- stages that do as they are told ----------------------------------------------------------------------------------


def act(x: Any) -> Any:
    """Do what `x` says: a value is returned, a tuple is a verb and its arguments."""
    if not isinstance(x, tuple):
        return x
    verb, *arguments = x
    return _VERBS[verb](*arguments)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def die_once(mark: str) -> str:
    """Die, unless `mark` is there already."""
    path = Path(mark)
    if not path.exists():
        path.touch()
        die()
    return "survived"


def segfault() -> None:
    ctypes.string_at(0)


def fail(message: str = "no") -> None:
    raise ValueError(message)


def fail_with(name: str, *arguments: Any) -> None:
    raise {"key": KeyError, "invalid": ps.InvalidItem, "exit": SystemExit, "nested": Unreadable}[name](*arguments)


class Unreadable(LookupError):
    """Its message cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def hold(folder: str, x: Any) -> Any:
    """Note that `x` runs, and wait for the gate of `folder`."""
    note(Path(folder) / "ran", x)
    wait_for(Path(folder) / "open")
    return x


def spin() -> None:
    """Compute for ever."""
    while True:
        pass


def spawn(seconds: int = 1000) -> int:
    """Start a program that outlives the call; its process id."""
    return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"]).pid


def fork() -> int:
    """Fork twice without exec: a child that has every descriptor of the worker, and no parent to wait for it."""
    read, write = os.pipe()
    middle = os.fork()
    if middle == 0:
        child = os.fork()
        if child == 0:
            os.close(read)
            time.sleep(1000)
            os._exit(0)
        os.write(write, str(child).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(middle, 0)
    return int(os.read(read, 32))


def shout() -> None:
    """Write where a worker's wire might be thought to be."""
    print("said by print", flush=True)  # noqa: T201  # what is tested
    print("said on stderr", file=sys.stderr, flush=True)  # noqa: T201  # what is tested
    os.write(1, b"said by write\n")
    os.write(2, b"said by write on 2\n")


def close_descriptors() -> str:
    for fd in range(3, 1024):  # the wire has the number that it had in the process that started this one
        try:
            os.close(fd)
        except OSError:
            continue
    return "closed"


def sockets() -> list[int]:
    """This process's descriptors that are sockets: the worker's wire among them."""
    return [fd for fd in range(3, 64) if Path(f"/proc/self/fd/{fd}").exists() and stat.S_ISSOCK(os.fstat(fd).st_mode)]


def garble() -> None:
    """Write what is no frame into the wire."""
    for fd in sockets():
        os.write(fd, b"this is no frame, and it is longer than the header of one")


def facts() -> dict[str, Any]:
    """What a test may want to know about the process it runs in."""
    return {
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "parent": os.getppid(),
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "env": dict(os.environ),
        "main": sys.modules["__main__"].__name__,
        "threads": threading.active_count(),
        "stdin": str(Path("/proc/self/fd/0").readlink()),
    }


def signal_self(number: int) -> str:
    os.kill(os.getpid(), number)
    return "alive"


def child_signals() -> list[str]:
    """How the signals that everybody gets stand in a program this process starts."""
    code = (
        "import signal as s;"
        "others = [s.getsignal(n) == s.SIG_DFL for n in (s.SIGTERM, s.SIGHUP, s.SIGQUIT, s.SIGUSR1)];"
        "print(s.getsignal(2) is s.default_int_handler, all(others), *s.pthread_sigmask(0, []))"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def dump_in_fork(path: str) -> str:
    """What `faulthandler`, which this process puts on SIGUSR1, writes in a fork of it."""
    with Path(path).open("w") as file:
        faulthandler.register(signal.SIGUSR1, file)
        try:
            end_fork(signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    return Path(path).read_text()


def end_fork(number: int) -> int:
    """How a fork of this process ends by signal `number`, as `subprocess` has it."""
    if (pid := os.fork()) == 0:
        os.kill(os.getpid(), number)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


_VERBS: dict[str, Any] = {
    "die": die,
    "die once": die_once,
    "segfault": segfault,
    "raise": fail,
    "raise a": fail_with,
    "hold": hold,
    "spin": spin,
    "sleep": time.sleep,
    "spawn": spawn,
    "fork": fork,
    "shout": shout,
    "garble": garble,
    "close": close_descriptors,
    "facts": facts,
    "signal": signal_self,
    "child signals": child_signals,
    "dump in fork": dump_in_fork,
    "end fork": end_fork,
    "lambda": lambda: lambda: None,
    "exit": os._exit,
}


class Act(ps.Stage):
    def predict(self, x: Any) -> Any:
        return act(x)


class Shares(ps.Stage):
    """Has shared memory that a resource tracker gives back, and two forks that keep it; one of them ignores SIGTERM."""

    def setup(self) -> None:
        self.memory = SharedMemory(create=True, size=4096)
        fork = multiprocessing.get_context("fork")
        self.children = [fork.Process(target=act, args=(("sleep", 1000),)) for _ in range(2)]
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.children[0].start()
        signal.signal(signal.SIGTERM, before)
        self.children[1].start()

    def predict(self, x: Any) -> Any:
        if x == "told":
            return [f"/dev/shm{self.memory._name}", *(child.pid for child in self.children)]  # type: ignore[attr-defined]
        return act(x)


class Fragile(ps.Stage):
    """Doubles on a device of this process that has memory for `fits` at once, and is lost for good after "poison"."""

    batch = ps.Batch(max_size=32)
    lost = False

    def setup(self, fits: int = 1000, words: str = "no device") -> None:
        self.fits = fits
        self.words = words

    def predict(self, xs: list[Any]) -> list[Any]:
        if not Fragile.lost and (len(xs) > self.fits or ("giant" in xs and len(xs) > 1)):
            raise MemoryError
        if "poison" in xs:
            Fragile.lost = True
        if Fragile.lost:
            (x for x in xs).throw(RuntimeError(self.words))  # as a function in C raises it, without a `raise`
        return [2 * x for x in xs]


class FragileWithExample(Fragile):
    examples = (1,)


class ImportsTorch(ps.Stage):
    """Finds a torch that has reserved 1 GiB on each of two devices, or has not `initialised` CUDA."""

    def setup(self, initialised: bool) -> None:
        cuda = SimpleNamespace(
            is_initialized=lambda: initialised,
            get_allocator_backend=lambda: "native",
            device_count=lambda: 2,
            memory_reserved=lambda device: 1 << 30,
        )
        sys.modules["torch"] = SimpleNamespace(cuda=cuda)

    def predict(self, x: Any) -> Any:
        return x


class ActBatch(ps.Stage):
    batch = ps.Batch(max_size=32)

    def predict(self, xs: list[Any]) -> list[Any]:
        return [act(x) for x in xs]


class NotedActs(ps.Stage):
    """Notes each batch before acting on it."""

    batch = ps.Batch(max_size=8)

    def setup(self, folder: str) -> None:
        self.notes = Path(folder) / "batches"

    def predict(self, xs: list[Any]) -> list[Any]:
        note(self.notes, [x if not isinstance(x, tuple) else x[0] for x in xs])
        return [act(x) for x in xs]


# -- stages that start badly ----------------------------------------------------------------------------------------


class ActsInSetup(ps.Stage):
    """Acts on each of `acts` in `setup`; on restarts, where `mark` exists, too."""

    def setup(self, acts: list[Any], mark: str | None = None) -> None:
        if mark is not None and not Path(mark).exists():
            return
        for what in acts:
            act(what)

    def predict(self, x: Any) -> Any:
        return act(x)


class SlowSetup(ps.Stage):
    """Its `setup` is over when `folder`/open is there."""

    def setup(self, folder: str) -> None:
        note(Path(folder) / "setting up", os.getpid())
        wait_for(Path(folder) / "open")

    def predict(self, x: Any) -> Any:
        return x


class CountsStarts(ps.Stage):
    """Notes when each `setup` runs, and dies in it while `folder`/deadly is there."""

    def setup(self, folder: str) -> None:
        note(Path(folder) / "starts", time.monotonic())
        if (Path(folder) / "deadly").exists():
            os._exit(3)

    def predict(self, x: Any) -> Any:
        return act(x)


# -- what workers know and make ---------------------------------------------------------------------------------------


class Typed(ps.Stage):
    def predict(self, x: int) -> int:
        return x if x >= 0 else "negative"  # type: ignore[return-value]  # on purpose: found by validate_results


GPUS_AT_IMPORT = os.environ.get("CUDA_VISIBLE_DEVICES")


class WhichGpus(ps.Stage):
    """The GPUs that this process sees, those that its stage is told, and which worker it is."""

    def setup(self) -> None:
        self.told = self.worker.gpus

    def predict(self, x: Any) -> tuple[Any, ...]:
        assert self.told == self.worker.gpus
        return self.worker.index, GPUS_AT_IMPORT, os.environ.get("CUDA_VISIBLE_DEVICES"), self.worker.gpus


class WhoAmI(ps.Stage):
    """`self.worker`, known from `setup` on."""

    def setup(self) -> None:
        self.in_setup = self.worker

    def predict(self, x: Any) -> list[Any]:
        assert self.in_setup == self.worker
        return [self.worker.stage, self.worker.index, self.worker.count]


class Poisonable(ps.Stage):
    """Fails the whole batch where one item is "bad", and notes every call."""

    batch = ps.Batch(max_size=32)

    def setup(self, folder: str) -> None:
        self.notes = Path(folder) / "calls"

    def predict(self, xs: list[Any]) -> list[Any]:
        note(self.notes, xs)
        if "all bad" in xs:
            raise RuntimeError("broken model")
        if "bad" in xs:
            raise ValueError("bad item")
        return [f"ok {x}" for x in xs]


class Arrays(ps.Stage):
    """Adds one to an array that is a view of what was received, and not a copy."""

    def predict(self, x: Any) -> Any:
        assert not x.flags.owndata
        assert not x.flags.writeable
        return x + 1


class BadTeardown(ps.Stage):
    def predict(self, x: Any) -> Any:
        return x

    def teardown(self) -> None:
        raise RuntimeError("teardown went wrong")


class SlowTeardown(ps.Stage):
    def predict(self, x: Any) -> Any:
        return x

    def teardown(self) -> None:
        time.sleep(60)


class AddOne(ps.Stage):
    """Changes an array in place, however it came."""

    def predict(self, x: Any) -> Any:
        x += 1
        return x


class SlowRestart(ps.Stage):
    """Its first `setup` is quick; later ones wait for `folder`/open."""

    def setup(self, folder: str) -> None:
        started = Path(folder) / "started once"
        if started.exists():
            wait_for(Path(folder) / "open")
        started.touch()

    def predict(self, x: Any) -> Any:
        return act(x)


class DiesWriting(ps.Stage):
    """Answers with as many bytes as the item says, and dies while a long answer is written."""

    def predict(self, n: int) -> bytes:
        if n > 1_000_000:
            threading.Timer(0.0, lambda: (time.sleep(0.01), os.kill(os.getpid(), signal.SIGKILL))).start()
        return bytes(n)


class SickUntilRestarted(ps.Stage):
    """Fails on every item in its first process; works in later ones."""

    def setup(self, folder: str) -> None:
        mark = Path(folder) / "has been sick"
        self.sick = not mark.exists()
        mark.touch()

    def predict(self, x: Any) -> Any:
        if x == "invalid":
            raise ps.InvalidItem("not an item")
        if self.sick:
            raise RuntimeError("out of order")
        return x


class SpawnsThenFails(ps.Stage):
    def setup(self, folder: str) -> None:
        note(Path(folder) / "spawned", spawn())
        raise RuntimeError("after spawning")

    def predict(self, x: Any) -> Any:
        return x


class SpawnsThenWaits(ps.Stage):
    def setup(self, folder: str) -> None:
        note(Path(folder) / "spawned", spawn())
        wait_for(Path(folder) / "open")

    def predict(self, x: Any) -> Any:
        return x


def square(x: int) -> int:
    return x * x


class Pool(ps.Stage):
    """Works with processes of its own."""

    def setup(self) -> None:
        import multiprocessing

        self.pool = multiprocessing.get_context("spawn").Pool(2)

    def predict(self, xs: Any) -> list[int]:
        return self.pool.map(square, xs)
