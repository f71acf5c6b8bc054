"""Choose the runtime of a format, which is imported when a graph of that format is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import ArtifactInvalid, ConfigError
from penstock.features.tensors import TensorSpec
from penstock.graphs.graph import Graph


class Runtime(NamedTuple):
    """What runs the graphs of a format."""

    module: str
    opener: str
    library: str
    """What has to be installed."""
    extra: str
    """Of Penstock, with that library."""
    has_roles: bool = False
    """Whether one source has the graphs of all roles."""


RUNTIMES: Final = {
    "onnx": Runtime("penstock.graphs.onnx_graph", "OnnxGraph", "onnxruntime", "onnx"),
    "pt2": Runtime("penstock.graphs.torch_graph", "TorchGraph", "torch", "torch"),
    "saved_model": Runtime(
        "penstock.graphs.tensorflow_graph", "TensorflowGraph", "tensorflow", "tensorflow", has_roles=True
    ),
}
"""By format."""


def open_graph(
    format: str,  # noqa: A002  # the word users know
    source: bytes | Path,
    *,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    threads: int = 1,
    role: str = "model",
    beside: Graph | None = None,
) -> Graph:
    """An exported model, ready to run.

    Args:
        format: "onnx", "pt2" or "saved_model".
        source: the file's content for the first two, the folder for "saved_model".
        inputs: what it has to take, by name and dtype; ArtifactInvalid where it does not.
        outputs: what it has to give.
        threads: how many threads one run uses.
        role: which graph it is, "model" or "ids", where a source of the format has those of all roles.
        beside: another graph of the model that is open: what both need is in memory once, where they have one source.

    Raises:
        ConfigError: the format is not known, or its library is not installed.
        ArtifactInvalid: the library cannot open it, or it takes or gives something else.
    """
    runtime = RUNTIMES.get(format)
    if runtime is None:
        raise ConfigError(f"{format!r} is not a supported format; use {', '.join(map(repr, RUNTIMES))}")
    opener: Callable[..., Graph] = getattr(_import(format, runtime), runtime.opener)
    try:
        roles = {"role": role, "beside": beside} if runtime.has_roles else {}
        return opener(source, inputs=inputs, outputs=outputs, threads=threads, **roles)
    except (ArtifactInvalid, MemoryError):
        raise
    except Exception as error:  # each runtime has errors of its own, and of no common kind
        text = " ".join(str(error).split()) or "no further details"  # a sentence, of whatever lines they make it
        raise ArtifactInvalid(
            f"{runtime.library} cannot open the {format} graph: {type(error).__name__}: {text}"
        ) from error


def check_library(format: str) -> None:  # noqa: A002  # the word users know
    """Do nothing, or raise ConfigError where the library is not installed that runs graphs of `format`.

    It is not imported: where a service is described, no model is run.
    """
    runtime = RUNTIMES[format]
    if find_spec(runtime.library) is None:
        raise _missing(format, runtime)


def _import(format: str, runtime: Runtime) -> object:  # noqa: A002  # the word users know
    try:
        return import_module(runtime.module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != runtime.library:
            raise
        raise _missing(format, runtime) from error


def _missing(format: str, runtime: Runtime) -> ConfigError:  # noqa: A002  # the word users know
    return ConfigError(
        f"a graph of the format {format!r} needs {runtime.library}, which is not installed: "
        f"pip install 'penstock[{runtime.extra}]'"
    )
