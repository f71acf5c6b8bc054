"""What `penstock check --measure` says of the memory, the times and the batches of each stage."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

import pytest
from served import PENSTOCK, Program, run
from spoken import spoken

LIMIT = 120.0
"""Seconds for a check of all the stages."""

STAGES = """
import asyncio
import os
import resource
import sys
import threading

import penstock as ps


class Words(ps.Stage):
    examples = ["a b", "c d e"]

    def predict(self, text: str) -> list[str]:
        print("words were asked for", file=sys.stderr)
        return text.split()


class Large(ps.Stage):
    batch = ps.Batch(max_size=12)

    def setup(self) -> None:
        self.weights = bytearray(b"x") * (200 << 20)

    def predict(self, batch: list[list[str]]) -> list[int]:
        if len(batch) > 6:
            raise MemoryError
        held = [bytearray(b"x") * (8 << 20) for _ in batch]
        return [len(words) for words in batch]


class Killed(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, xs: list[int]) -> list[int]:
        if len(xs) == 4:
            os.kill(os.getpid(), 9)
        return xs


class Broken(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, xs: list[int]) -> list[int]:
        if len(xs) == 2:
            raise LookupError("two are too many")
        return xs


class Plain(ps.Stage):
    def predict(self, x: int) -> int:
        return x


class Closes(ps.Stage):
    examples = [1]

    def setup(self) -> None:
        if threading.current_thread() is threading.main_thread():  # before, the stage is a thread
            os.closerange(3, 100)

    def predict(self, x: int) -> int:
        return x


class Unkept(ps.Stage):
    examples = [1]

    def setup(self) -> None:
        if threading.current_thread() is threading.main_thread():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))  # as on a full disk

    def predict(self, x: int) -> int:
        return x


class Own(ps.Stage):
    batch = ps.Batch(max_size=3, max_wait=0)
    examples = [1]

    def predict(self, xs: list[int]) -> list[int]:
        return xs


class Waits(ps.Stage):
    batch = ps.Batch(max_size=4)
    examples = [1]

    async def setup(self) -> None:
        self.turn = asyncio.Lock()

    async def preprocess(self, x: int) -> int:
        async with self.turn:
            await asyncio.sleep(0.01)
            return 2 * x

    def predict(self, xs: list[int]) -> list[int]:
        if len(xs) == 4:
            raise MemoryError
        return xs


class Behind(ps.Stage):
    def predict(self, x: int) -> int:
        if x != 2:
            raise LookupError(x)
        return x


class Fails(ps.Stage):
    batch = ps.Batch(max_size=3)
    examples = [1]

    async def predict(self, xs: list[int]) -> list[int]:
        if len(xs) == 2:
            raise LookupError("two are too many")
        return xs


square = ps.remote("square", item=int, result=int, examples=[3])
behind, unfed = ps.stage(Plain, name="Behind"), ps.stage(Plain, name="Unfed")
service = ps.Service(Words, Large, Killed, Broken, Plain, square, behind, Closes, Unkept, unfed, Own, name="mixed")
waiting = ps.Service(Waits, ps.stage(Behind, name="Fed"), Fails, name="waiting")
"""


class Measured(NamedTuple):
    """A check that has ended: its status, what it wrote, and that in one line."""

    status: int
    output: str
    line: str

    def rows(self, stage):
        """What was measured of a stage, and what was found."""
        return dict(re.findall(rf"^│ {stage} +│ ([^│]+?) +│ ([^│]+?) +│$", self.output, re.MULTILINE))


def measure(folder, service="service", **variables):
    status, output = run(
        folder, "check", f"model:{service}", "--measure", env={"COLUMNS": "400", **variables}, limit=LIMIT
    )
    return Measured(status, output, " ".join(output.split()))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The stages above, measured."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "model.py").write_text(STAGES)
    return measure(folder)


def mebibytes(words):
    return float(re.fullmatch(r"([0-9.]+) MiB, resident", words)[1])


def test_the_memory_of_setup_and_of_an_item_is_that_of_the_stage_alone(measured):
    rows = measured.rows("Large")
    assert mebibytes(rows["memory of setup"]) == pytest.approx(200, abs=10)
    assert mebibytes(rows["memory of one more item"]) == pytest.approx(8, abs=1)


def test_memory_too_small_to_be_seen_is_said_to_be(measured):
    for stage in ("Words", "Killed", "Plain", "Own"):
        assert measured.rows(stage)["memory of setup"] == "less than 2.0 MiB, resident: too little to measure"
    assert measured.rows("Own")["memory of one more item"] == "less than 1.0 MiB, resident: too little to measure"


def test_a_size_without_memory_ends_the_sizes_and_is_nothing_wrong(measured):
    rows = measured.rows("Large")
    assert [what for what in rows if what.startswith("batch of ")] == ["batch of 1", "batch of 2", "batch of 4"]
    assert rows["largest batch"] == "4 ran, but 8 ran out of memory (max_size is 12)"
    assert "measuring stage Large" not in measured.line


def test_the_largest_size_is_the_policys_own(measured):
    rows = measured.rows("Own")
    assert [what for what in rows if what.startswith("batch of ")] == ["batch of 1", "batch of 2", "batch of 3"]
    assert re.fullmatch(r"[0-9]+\.[0-9]{3} ms, [0-9]+\.[0-9] items/s", rows["batch of 3"])
    assert rows["largest batch"] == "3 ran, which is max_size"


def test_each_stage_with_a_batch_policy_has_a_line_to_copy_that_stands_alone(measured):
    lines = re.findall(r"^stage (\w+): batch=ps\.Batch\(max_size=(\d+)\)$", measured.output, re.MULTILINE)
    assert [stage for stage, _ in lines] == ["Large", "Killed", "Broken", "Own"]
    assert {size for _, size in lines} <= {"1", "2", "3", "4"}
    assert list(measured.rows("Plain")) == ["memory of setup", "memory of one item", "batch of 1"]


def test_a_stage_that_ends_its_process_is_wrong_and_the_next_is_measured(measured):
    words = "measuring stage Killed: batch of 4 │ the check's process ended: signal SIGKILL; the kernel also ends"
    assert f"failed │ {words}" in measured.line
    assert measured.rows("Killed")["largest batch"] == "2 ran before it failed (max_size is 8)"
    assert measured.status == 1


def test_a_stage_that_fails_at_a_size_is_wrong(measured):
    words = "measuring stage Broken: batch of 2 │ stage 'Broken' raised builtins.LookupError: two are too many"
    assert f"failed │ {words}" in measured.line
    assert "3 failed, " in measured.line


def test_a_stage_that_closes_every_descriptor_is_wrong_and_what_it_wrote_last_is_told(measured):
    words = "measuring stage Closes: setup and examples │ the check's process ended: exit status 1"
    assert f"failed │ {words}" in measured.line
    assert (
        "Its last output: │ │ │ │ cannot report the results of the check: Bad file descriptor; does the"
        in measured.line
    )


def test_stages_that_cannot_be_measured_are_skipped_with_the_reason(measured):
    for words in (
        "stage square │ not measured: its workers are remote",
        "stage Behind │ not measured: it has no examples, and the stage before it gives it no items",
    ):
        assert f"skipped │ measuring {words}" in measured.line


def test_a_stage_whose_results_cannot_be_written_down_is_measured_with_a_warning(measured):
    words = "cannot store its results for the next stage: [Errno 27] File too large;"
    assert f"warning │ measuring stage Unkept │ {words} set TMPDIR to a directory with free space" in measured.line
    assert "batch of 1" in measured.rows("Unkept")
    assert "skipped │ measuring stage Unfed │ not measured: the stage before it gave no results" in measured.line


def test_what_a_stage_prints_for_each_batch_is_not_written_for_each_run(measured):
    """The check before the measuring ran each of two examples twelve times at most."""
    assert 0 < measured.output.count("words were asked for") <= 24


def test_a_waiting_stage_is_measured_with_one_batch_at_a_time(tmp_path):
    (tmp_path / "model.py").write_text(STAGES)
    measured = measure(tmp_path, "waiting")
    rows = measured.rows("Waits")
    assert [what for what in rows if what.startswith("batch of ")] == ["batch of 1", "batch of 2"]
    times = [
        float(re.fullmatch(r"([0-9.]+) ms, alone; a worker has 2 in progress", rows[f"batch of {n}"])[1])
        for n in (1, 2)
    ]
    assert times[0] >= 10
    assert times[1] >= 20
    assert rows["largest batch"] == "2 ran, but 4 ran out of memory (max_size is 4)"
    assert "stage Waits: batch=" not in measured.output
    assert "batch of 1" in measured.rows("Fed")
    assert "failed │ measuring stage Fails: batch of 2 │ stage 'Fails' raised builtins.LookupError" in measured.line
    assert (measured.status, measured.line.count("failed │")) == (1, 1)


def test_where_the_declarations_are_wrong_nothing_is_measured(module):
    folder = module("import penstock as ps\n\ndef f(x: complex) -> float: ...\n\nservice = ps.Service(f)\n")
    status, output, _ = spoken(folder, "check", "model:service", "--measure", env={"COLUMNS": "1000"})
    assert status == 1
    assert "nothing was measured: fix the failed checks first" in output


TORCH = """
class Cuda:
    '''Plays two devices, of which the stage begins the second; whoever else begins one fails.'''

    begun, lost, taken, most = False, False, 0, 0

    def is_initialized(self):
        return self.begun

    def get_allocator_backend(self):
        return "native"

    def take(self, nbytes):
        self.begun = True
        self.taken += nbytes
        self.most = max(self.most, self.taken)

    def device_count(self):
        assert self.begun
        return 2

    def memory_reserved(self, device):
        assert self.begun
        return (0, self.taken + 1000)[device]

    def memory_allocated(self, device):
        assert self.begun and device == 1
        return self.taken

    def max_memory_allocated(self, device):
        assert self.begun and device == 1
        return self.most

    def reset_peak_memory_stats(self, device):
        assert self.begun and device == 1
        self.most = self.taken

    def synchronize(self, device):
        assert self.begun and device == 1
        if self.lost:
            raise RuntimeError("device-side assert triggered")


cuda = Cuda()
"""
ON_DEVICE = """
import os
import threading

import penstock as ps
import torch

SEEN = os.environ.get("CUDA_VISIBLE_DEVICES")


class Host(ps.Stage):
    examples = [1]

    def predict(self, x: int) -> int:
        return x


class Encode(ps.Stage):
    batch = ps.Batch(max_size=4)

    def setup(self) -> None:
        measured = threading.current_thread() is threading.main_thread()  # before, the stages are threads
        if measured and SEEN != "7":
            raise LookupError(f"it sees {SEEN}")
        torch.cuda.take(3 << 30)

    def predict(self, xs: list[int]) -> list[int]:
        torch.cuda.take(len(xs) * (5 << 20))
        torch.cuda.take(-len(xs) * (5 << 20))
        return xs


class Lost(ps.Stage):
    batch = ps.Batch(max_size=4)
    examples = [1]

    def setup(self, raises: bool) -> None:
        self.raises = raises
        torch.cuda.take(1 << 30)

    def predict(self, xs: list[int]) -> list[int]:
        if len(xs) == 2 and threading.current_thread() is threading.main_thread():
            torch.cuda.lost = True
            if self.raises:
                raise LookupError("no more of this")
        return xs


lost = [ps.stage(Lost, name=f"Lost{raises:d}", setup={"raises": raises}) for raises in (False, True)]
service = ps.Service(Host, ps.stage(Encode, gpus=[1]), name="encode")
losing = ps.Service(*lost, name="losing")
"""


def test_a_stage_that_computes_on_a_device_is_measured_there_and_on_its_own_gpu(module):
    folder = module(ON_DEVICE)
    (folder / "torch.py").write_text(TORCH)
    found = measure(folder, CUDA_VISIBLE_DEVICES="3,7")
    assert found.status == 0, found.output
    assert found.rows("Encode")["memory of setup"] == "3.0 GiB, on the device"
    assert found.rows("Encode")["memory of one more item"] == "5.0 MiB, on the device"
    assert found.rows("Host")["memory of setup"].endswith("resident: too little to measure")


def test_a_device_that_fails_at_a_size_is_wrong_and_an_error_of_the_stage_is_told_first(module):
    folder = module(ON_DEVICE)
    (folder / "torch.py").write_text(TORCH)
    found = measure(folder, "losing")
    assert "Lost0: batch of 2 │ the device failed: builtins.RuntimeError: device-side assert triggered" in found.line
    assert "Lost1: batch of 2 │ stage 'Lost1' raised builtins.LookupError: no more of this" in found.line
    assert "2 failed, " in found.line


HANGS = """
import os
import subprocess
import threading
import time

import penstock as ps


class Model(ps.Stage):
    examples = [1]

    def predict(self, x: int) -> int:
        if threading.current_thread() is threading.main_thread():  # before, the stage is a thread
            subprocess.Popen(["sleep", "1000"])
            with open(f"/proc/{os.getppid()}/fd/2", "w") as of_the_check:
                print("hangs now", file=of_the_check)
            time.sleep(1000)
        return x


service = ps.Service(Model, name="model")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.night)])
def test_a_measuring_that_a_signal_ends_leaves_nothing_behind(module, number):
    program = Program(module(HANGS), *PENSTOCK, "check", "model:service", "--measure")
    try:
        program.wait_for("hangs now")
        program.signal(number)
        assert program.wait() == (130 if number == signal.SIGINT else -number)
    finally:
        program.destroy()
    assert "measuring stage" not in program.output, "nothing is shown on what is no terminal"
