"""What an error says of the device and of memory, by the words of each framework, none of which is imported here."""

from __future__ import annotations

import sys
import weakref
from types import SimpleNamespace

import pytest

from penstock.worker.device_errors import device_is_lost, let_go, ran_out_of_memory
from rows import each


def made(module, name, text, *bases):
    """An error of a class of that module and name."""
    return type(name, bases or (Exception,), {"__module__": module})(text)


def natively(error):
    """`error` as a function in C raises it, without a `raise`."""
    try:
        (_ for _ in ()).throw(error)
    except BaseException as caught:
        return caught


class Unreadable(RuntimeError):
    def __str__(self):
        raise ValueError


class Bigger(MemoryError):
    pass


SHORT = [
    MemoryError("cannot allocate"),
    Bigger(),
    made("torch", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", RuntimeError),
    RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    made("tensorflow.python.framework.errors_impl", "ResourceExhaustedError", "OOM when allocating tensor"),
    made(
        "jaxlib.xla_extension", "XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 1 byte", RuntimeError
    ),
    made(
        "onnxruntime.capi.onnxruntime_pybind11_state", "RuntimeException", "... Failed to allocate memory for 4 bytes"
    ),
]
NOT_SHORT = [
    ValueError("CUDA out of memory"),  # an item may say so
    RuntimeError("bad item: CUDA out of memory"),
    RuntimeError("CUDA error: device-side assert triggered"),
    made("tensorflow.python.framework.errors_impl", "InternalError", "something"),
    made("jaxlib.xla_extension", "XlaRuntimeError", "INTERNAL: something", RuntimeError),
    made("app", "OutOfMemoryError", "of my own"),
    made(None, "Odd", "RESOURCE_EXHAUSTED"),
    Unreadable(),
    made("torch", "Error", "x", Unreadable),
]


@each("error", SHORT)
def test_want_of_memory_is_known_by_the_class_and_by_the_words_of_its_framework(error):
    assert ran_out_of_memory(natively(error))


@each("error", NOT_SHORT)
def test_no_other_error_is_taken_for_it_whatever_its_text_says(error):
    assert not ran_out_of_memory(natively(error))


LASTING = [
    RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be ..."),
    made("torch", "AcceleratorError", "CUDA error: an illegal memory access was encountered", RuntimeError),
    made("onnxruntime.capi.x", "Fail", "CUDA failure 719: unspecified launch failure ; GPU=0"),
    made("tensorflow.python.x", "InternalError", "CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered"),
    made("jaxlib.xla_extension", "XlaRuntimeError", "INTERNAL: CUDA_ERROR_ILLEGAL_INSTRUCTION", RuntimeError),
]
NOT_LASTING = [
    ValueError("CUDA error: misaligned address"),
    RuntimeError("bad item: CUDA error: misaligned address"),
    RuntimeError("CUDA error: invalid argument"),
    made("torch", "AcceleratorError", "CUDA error: invalid configuration argument", RuntimeError),
    made("jaxlib.xla_extension", "XlaRuntimeError", "INTERNAL: something", RuntimeError),
    Unreadable(),
]


@each("error", LASTING)
def test_a_device_is_lost_by_the_errors_that_leave_its_process_unusable(error):
    assert device_is_lost(natively(error))


@each("error", NOT_LASTING)
def test_by_other_errors_it_need_not_be_lost(error):
    assert not device_is_lost(natively(error))


@each("raises", [True, False])
def test_no_words_of_a_client_are_taken_for_those_of_a_library(raises):
    error = RuntimeError("CUDA error: misaligned address")  # of a stage that says what it was sent
    if raises:
        with pytest.raises(RuntimeError):
            raise error
    assert not device_is_lost(error)


class Tensor:
    pass


def call(kept):
    tensor = Tensor()
    kept.append(weakref.ref(tensor))
    raise MemoryError


def test_what_the_failed_call_and_those_before_it_held_is_let_go_of(monkeypatch):
    emptied = []
    torch = SimpleNamespace(cuda=SimpleNamespace(empty_cache=lambda: emptied.append(True)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    kept = []
    try:
        try:
            call(kept)
        except MemoryError:
            call(kept)
    except MemoryError as error:
        failed = error
    assert [held() is None for held in kept] == [False, False]
    let_go(failed)
    assert ([held() is None for held in kept], emptied) == ([True, True], [True])
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())  # as while it is being imported
    failed.__cause__ = failed
    let_go(failed)
