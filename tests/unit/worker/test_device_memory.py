"""How much memory torch has reserved, as a torch that is a fake tells it."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import LazyLoader, module_from_spec
from types import SimpleNamespace

import pytest

from penstock.transport.framing import encode_device_memory
from penstock.worker.device_memory import DeviceMemory
from rows import each


class FakeCuda:
    """As much of `torch.cuda` as is asked, and all of it that initialises CUDA or makes a context."""

    def __init__(self, *reserved, initialised=True, backend="native"):
        self.reserved, self.initialised, self.backend = reserved, initialised, backend
        self.calls: list[str] = []

    def is_initialized(self):
        self.calls.append("is_initialized")
        return self.initialised

    def get_allocator_backend(self):
        self._called("get_allocator_backend")
        return self.backend

    def device_count(self):
        self._called("device_count")
        return len(self.reserved)

    def memory_reserved(self, device=None):
        assert device is not None, "it would ask CUDA for the current device"
        assert self.backend == "native", "it would go to the device"
        self._called("memory_reserved")
        return self.reserved[device]

    def _called(self, name):
        assert self.initialised, f"{name} before CUDA was initialised"
        self.calls.append(name)

    def __getattr__(self, name):
        raise AssertionError(f"torch.cuda.{name} is not to be used")


@pytest.fixture
def plant(monkeypatch):
    return lambda cuda: monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def test_the_memory_of_all_devices_is_told_together(plant):
    plant(FakeCuda(3 << 30, 0, 5))
    assert DeviceMemory().notes(0.0) == [encode_device_memory((3 << 30) + 5)]


def test_torch_is_asked_once_a_second_at_most(plant):
    cuda = FakeCuda(8)
    plant(cuda)
    memory = DeviceMemory()
    assert [len(memory.notes(now)) for now in (50.0, 50.0, 50.999, 51.0, 51.5, 52.0)] == [1, 0, 0, 1, 0, 1]
    assert cuda.calls == ["is_initialized", "get_allocator_backend", "device_count", "memory_reserved"] * 3


def test_a_torch_whose_cuda_is_not_initialised_is_asked_nothing_else(plant):
    cuda = FakeCuda(8, initialised=False)
    plant(cuda)
    memory = DeviceMemory()
    assert [memory.notes(now) for now in (0.0, 0.5, 1.0)] == [[], [], []]
    assert cuda.calls == ["is_initialized"] * 2
    cuda.initialised = True
    assert memory.notes(2.0) == [encode_device_memory(8)]


def test_an_allocator_that_makes_a_context_where_it_is_asked_is_not_asked(plant):
    plant(FakeCuda(8, backend="cudaMallocAsync"))
    assert DeviceMemory().notes(0.0) == []


def test_a_lazy_torch_stays_unimported(monkeypatch):
    class Unimported:
        def create_module(self, spec):
            return None

        def exec_module(self, module):
            raise AssertionError("it was imported")

    spec = ModuleSpec("torch", LazyLoader(Unimported()))
    torch = module_from_spec(spec)
    spec.loader.exec_module(torch)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert DeviceMemory().notes(0.0) == []


class Exits(FakeCuda):
    def memory_reserved(self, device=None):
        raise SystemExit


@each(
    "torch",
    [
        None,  # as whoever bars an import writes it
        0,
        object(),
        SimpleNamespace(),
        SimpleNamespace(cuda=None),
        SimpleNamespace(cuda=SimpleNamespace(is_initialized=True)),
        SimpleNamespace(cuda=Exits(8)),
        SimpleNamespace(cuda=FakeCuda("8 GiB")),
        SimpleNamespace(cuda=FakeCuda(None)),
        SimpleNamespace(cuda=FakeCuda(1.5)),
        SimpleNamespace(cuda=FakeCuda(-1)),
        SimpleNamespace(cuda=FakeCuda(1 << 64)),
    ],
)
def test_a_torch_that_raises_or_says_what_torch_does_not_tells_nothing(torch, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert DeviceMemory().notes(0.0) == []


def test_no_more_devices_are_asked_than_there_can_be(plant):
    class Countless(FakeCuda):
        def device_count(self):
            return 1 << 60

        def memory_reserved(self, device=None):
            return 1

    plant(Countless())
    assert DeviceMemory().notes(0.0) == [encode_device_memory(128)]
