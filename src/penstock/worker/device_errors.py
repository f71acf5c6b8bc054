"""Tell from an error whether there was not enough memory for a batch, or whether the device is lost for good.

The frameworks are not imported here: an error is known by its class's module and name, and by its text.  The text alone
says nothing, because a message may have an item in it, which a caller has written.  A plain RuntimeError, by which
older versions of PyTorch speak, is believed only where no `raise` of Python has raised it.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import re
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

_MOST_CHAINED: Final = 16
"""Errors behind one that are looked at: they may be a circle."""
_TEXT_CHARACTERS: Final = 4096
"""How much of a message is looked at."""
_FRAMEWORKS: Final = frozenset(("cupy", "cupy_backends", "jax", "jaxlib", "onnxruntime", "tensorflow", "torch"))
_OUT_OF_MEMORY_CLASSES: Final = frozenset((("torch", "OutOfMemoryError"), ("tensorflow", "ResourceExhaustedError")))
_OUT_OF_MEMORY_TEXT: Final = re.compile(
    r"RESOURCE_EXHAUSTED|CUDA out of memory|DefaultCPUAllocator: (can't allocate|not enough) memory"
    r"|Failed to allocate memory"
)
"""As JAX, PyTorch for what has no class of its own, and onnxruntime word it."""
_LASTING_TEXT: Final = re.compile(
    r"an illegal (memory access|instruction) was encountered|device-side assert triggered|unspecified launch failure"
    r"|uncorrectable ECC error encountered|misaligned address"
    r"|CUDA_ERROR_(ILLEGAL_ADDRESS|ILLEGAL_INSTRUCTION|ASSERT|LAUNCH_FAILED|ECC_UNCORRECTABLE|MISALIGNED_ADDRESS)"
)
"""The errors after which, as CUDA documents them, each further call of the process fails: it must be started anew.

Others may last too, and do not have to: an invalid argument, an invalid configuration, INTERNAL of JAX.
"""
_RUNTIME_ERROR_TEXT: Final = re.compile(r"CUDA (error|out of memory)|\[enforce fail at alloc_cpu")
"""How a plain RuntimeError of PyTorch begins that is about the device."""

_module_of: Final[Callable[[type], Any]] = type.__dict__["__module__"].__get__
_trace_of: Final[Callable[[BaseException], TracebackType | None]] = BaseException.__dict__["__traceback__"].__get__
_RAISE: Final = dis.opmap["RAISE_VARARGS"]
_set_trace: Final[Callable[[BaseException, None], None]] = BaseException.__dict__["__traceback__"].__set__


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that there was not enough memory, of the device or of the host, for a call."""
    kind = type(error)
    if issubclass(kind, MemoryError):
        return True
    names = {(_root(base), base.__name__) for base in type.mro(kind)}
    return not names.isdisjoint(_OUT_OF_MEMORY_CLASSES) or _says(error, _OUT_OF_MEMORY_TEXT)


def device_is_lost(error: BaseException) -> bool:
    """Whether `error` says that the device is of no use any more to this process."""
    return _says(error, _LASTING_TEXT)


def _says(error: BaseException, words: re.Pattern[str]) -> bool:
    """Whether a framework wrote `words` in the message of `error`."""
    kind = type(error)
    if _raised_by_python(error) if kind is RuntimeError else _root(kind) not in _FRAMEWORKS:
        return False
    try:
        text = str(error)[:_TEXT_CHARACTERS]
    except BaseException:  # noqa: BLE001  # it may be a class of the user's
        return False
    if kind is RuntimeError and not _RUNTIME_ERROR_TEXT.match(text):
        return False
    return words.search(text) is not None


def _raised_by_python(error: BaseException) -> bool:
    """Whether a `raise` statement has raised `error`, as the user's code does, and no function of a library in C."""
    trace = _trace_of(error)
    if trace is None:
        return True
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


def _root(kind: type) -> str:
    """The package that `kind` comes from."""
    module = _module_of(kind)
    return module.partition(".")[0] if isinstance(module, str) else ""


def let_go(error: BaseException) -> None:
    """Free what the call held that raised `error`: the variables of its frames, and what PyTorch keeps for the next.

    A traceback refers to each frame, and so to each tensor that was a local variable there.
    """
    chained: BaseException | None = error
    for _ in range(_MOST_CHAINED):
        if chained is None:
            break
        _set_trace(chained, None)
        chained = chained.__cause__ or chained.__context__
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        with contextlib.suppress(Exception):  # it may be imported only in part
            torch.cuda.empty_cache()
