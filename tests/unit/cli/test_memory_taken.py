"""What a process says of its own memory, and what it never does to a device for that."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from penstock.cli import memory_taken
from penstock.cli.findings import Memory
from penstock.cli.memory_taken import await_devices, forget_peak, taken_at_most, taken_now

MIB = 2**20
ACTIONS = (taken_now, taken_at_most, forget_peak, await_devices)


class Cuda:
    """Plays `torch.cuda`, and notes each call."""

    def __init__(self, *, begun, reserved):
        self.calls = []
        self._begun = begun
        self._reserved = reserved

    def is_initialized(self):
        self.calls.append("is_initialized")
        return self._begun

    def get_allocator_backend(self):
        return "native"

    def device_count(self):
        self.calls.append("device_count")
        return len(self._reserved)

    def memory_reserved(self, device):
        return self._reserved[device]

    def __getattr__(self, name):
        def call(device):
            self.calls.append((name, device))
            return {"memory_allocated": 10, "max_memory_allocated": 100}.get(name, 0) + device

        return call


@pytest.fixture
def torch(monkeypatch):
    def play(*, begun=True, reserved=()):
        cuda = Cuda(begun=begun, reserved=reserved)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        return cuda

    return play


@pytest.mark.parametrize("action", ACTIONS)
def test_a_device_that_the_stage_has_not_begun_is_not_begun(torch, action):
    cuda = torch(begun=False, reserved=[1])
    action()
    assert set(cuda.calls) == {"is_initialized"}


@pytest.mark.parametrize("action", ACTIONS)
def test_devices_on_which_the_stage_has_nothing_are_asked_for_nothing(torch, action):
    cuda = torch(reserved=[0, 0])
    assert action() is None or not action().on_device
    assert set(cuda.calls) == {"is_initialized", "device_count"}


def test_the_memory_of_devices_is_the_sum_of_what_torch_has_there(torch):
    cuda = torch(reserved=[1, 0, 1])
    assert taken_now() == Memory(10 + 12, on_device=True)
    assert taken_at_most() == Memory(100 + 102, on_device=True)
    cuda.calls.clear()
    forget_peak()
    await_devices()
    done = [call for call in cuda.calls if isinstance(call, tuple)]
    assert done == [
        ("reset_peak_memory_stats", 0),
        ("reset_peak_memory_stats", 2),
        ("synchronize", 0),
        ("synchronize", 2),
    ]


@pytest.mark.parametrize("module", [None, SimpleNamespace(), SimpleNamespace(cuda=SimpleNamespace())])
def test_torch_that_is_not_there_or_in_part_is_no_device(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "torch", module)
    for action in ACTIONS:
        assert action() is None or not action().on_device


@pytest.mark.parametrize("told", ["10", None, 1.5, -1, 1 << 64, SystemExit])
def test_where_torch_tells_no_size_the_resident_memory_is_told(torch, told):
    def tell(_device):
        if told is SystemExit:
            raise told
        return told

    cuda = torch(reserved=[1])
    cuda.memory_allocated = cuda.max_memory_allocated = cuda.reset_peak_memory_stats = tell
    forget_peak()
    assert not taken_now().on_device
    assert not taken_at_most().on_device


def test_resident_memory_is_what_is_taken_and_its_peak_can_be_forgotten(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    before = taken_now().nbytes
    forget_peak()
    held = bytearray(b"x") * (64 * MIB)
    assert taken_now().nbytes - before == pytest.approx(64 * MIB, abs=8 * MIB)
    del held
    assert taken_now().nbytes - before < 8 * MIB
    assert taken_at_most().nbytes - before == pytest.approx(64 * MIB, abs=8 * MIB)
    forget_peak()
    assert taken_at_most().nbytes - before < 8 * MIB


def test_where_the_kernel_does_not_tell_the_peak_of_the_process_stands_for_both(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(memory_taken, "_CLEAR_REFS", tmp_path / "none" / "clear_refs")
    forget_peak()
    for text in (None, "Name:\tpython\n"):
        monkeypatch.setattr(memory_taken, "_STATUS", tmp_path / "status")
        if text is not None:
            (tmp_path / "status").write_text(text)
        assert taken_now() == taken_at_most()
        assert taken_now().nbytes > MIB
