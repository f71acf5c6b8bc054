"""Export a model of PyTorch: it is asked and exported in eval mode, without gradients, on the CPU.

The model is called with keyword inputs, in training as here: ``model(**inputs)``.  Nothing of the user's model stays
changed: each submodule has its own mode and buffers back, also after an error, and a model on a GPU is copied before it
is moved.  A model that writes to a buffer when it is asked is refused: its answers would depend on what others asked.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import keyword
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.artifact.manifest import GraphFormat
from penstock.errors import ConfigError, ExportRefused
from penstock.export.class_names import class_names
from penstock.export.exporter import GraphSignature, ModelAnswer, WholeModel
from penstock.export.naming import split_outputs
from penstock.export.quiet import quietly
from penstock.features.tensors import TensorSpec

if TYPE_CHECKING:
    import numpy as np
    import torch

    from penstock.features.feature_spec import Features

T = TypeVar("T")

WRAPPERS: Final = {
    "torch.DistributedDataParallel": "module",
    "torch.DataParallel": "module",
    "torch.OptimizedModule": "_orig_mod",
}
"""What holds the model itself, and under which name; the last is what `torch.compile` returns."""
SHARDED: Final = {"torch.FullyShardedDataParallel", "torch.FSDPModule"}
EXAMPLE_ROWS: Final = 7
"""How many rows a model is traced with: 0 and 1 are special to PyTorch, and 7 is seldom the size of anything."""
CAUSE_BEGINS: Final = "## Exception summary"
"""What stands before the cause where PyTorch cannot write ONNX."""
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
REASON_CHARS: Final = 1500
"""How much of PyTorch's reason is told: it goes on for pages."""


def torch_exporter(model: Any, features: Features | None = None) -> TorchExporter:  # noqa: ARG001  # a model of Keras needs them
    """The exporter of `model`, or of the model that it wraps.

    Raises:
        ConfigError: its weights are spread over several processes, or not there.
    """
    return TorchExporter(exported_module(model))


def exported_module(model: Any, *, offloaded: bool = False) -> Any:
    """The module itself, on the CPU: without what wraps it, and a copy where it is elsewhere.

    Raises:
        ConfigError: its weights are spread over several processes, or not there; or, unless it is `offloaded`, in a
            training store.
    """
    while wrapper := next(iter(class_names(model) & set(WRAPPERS)), None):
        model = getattr(model, WRAPPERS[wrapper])
    for name, module in model.named_modules():
        if "penstock.Offloaded" in class_names(module) and not offloaded:
            raise ConfigError(
                f"{name or 'the model'} has its rows in a training store: pass the object that "
                "penstock.embeddings.offload returned to save, not the model"
            )
        if class_names(module) & SHARDED:
            raise ConfigError(
                f"{name or 'the model'} is sharded by FSDP, so no process has all of its weights: gather them with "
                "torch.distributed.checkpoint.state_dict.get_model_state_dict(model, options=StateDictOptions("
                "full_state_dict=True, cpu_offload=True)), load them into a plain model, and save that one"
            )
    devices = {tensor.device.type for tensor in (*model.parameters(), *model.buffers())}
    if "meta" in devices:
        raise ConfigError("the model is on the meta device and has no weights; load them first")
    return model if devices <= {"cpu"} else copy.deepcopy(model).to("cpu")


class TorchExporter(WholeModel):
    """A model on the CPU."""

    libraries = ("torch", "onnx", "onnxscript")
    formats: Final[tuple[GraphFormat, ...]] = ("onnx", "pt2")
    classes = None
    doubt = ""
    refuses_rows = False

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._written: set[str] = set()
        """The buffers that it has changed where it was asked."""

    def check_inputs(self, inputs: Sequence[TensorSpec]) -> None:
        """Refuse text, which PyTorch has no tensors of, and what cannot be the name of an argument."""
        for tensor in inputs:
            if tensor.dtype == "str":
                raise ConfigError(
                    f"feature {tensor.name!r} is Text, but PyTorch has no tensors of text: use Hashed or Vocabulary"
                )
            if not tensor.name.isidentifier() or keyword.iskeyword(tensor.name) or tensor.name == "self":
                raise ConfigError(
                    f"a model of PyTorch is called with keywords, and {tensor.name!r} cannot be one: give the feature "
                    f"another name, with column={tensor.name!r}"
                )

    def answer(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> ModelAnswer:
        """What the model answers in eval mode."""
        import torch

        tensors = {name: torch.tensor(array) for name, array in inputs.items()}
        with _asked(self._model) as buffers:
            try:
                parts, names = split_outputs(self._model(**tensors))
            except ConfigError:
                raise
            except Exception as error:  # the model is the user's, and may raise anything
                called = ", ".join(f"{name}={array.dtype}{list(array.shape)}" for name, array in inputs.items())
                raise ConfigError(f"model({called}) raised {type(error).__name__}: {error}") from error
            self._written |= buffers.written()
            shown = names or [f"number {place}" for place in range(len(parts))]
            return ModelAnswer([_to_array(part, name) for part, name in zip(parts, shown, strict=True)], names)

    def write(self, format: str, folder: Path, signature: GraphSignature) -> str:  # noqa: A002  # the word users know
        """Write `model.onnx`, or `model.pt2` which is called with keywords too and returns a tuple."""
        path = folder / f"model.{format}"
        with self.followed(format):
            program = torch_export(lambda: _trace(self._model, signature), format)
            write_program(program, format, path, signature)
        return path.name

    @contextlib.contextmanager
    def followed(self, format: str) -> Iterator[None]:  # noqa: A002
        """Have the model as it is traced, and nothing printed."""
        if self._written:
            names = ", ".join(map(repr, sorted(self._written)))
            raise ExportRefused(
                f"the model writes to its buffer {names} during inference, so its outputs could depend on "
                "earlier calls: write to it only where self.training is True",
                format=format,
            )
        with quietly(), _asked(self._model):
            yield


def torch_export(trace: Callable[[], T], format: str) -> T:  # noqa: A002
    """Call `trace`, and return what it returns.

    Raises:
        ExportRefused: it, or torch.export in it, refuses the model.
    """
    try:
        return trace()
    except ExportRefused:
        raise
    except Exception as error:  # torch.export raises the model's errors, and many of its own
        raise ExportRefused(
            f"torch.export cannot trace the model for batches of any size: {_reason(error)}", format=format
        ) from error


def write_program(program: Any, format: str, path: Path, signature: GraphSignature) -> None:  # noqa: A002
    """Write an exported program as a file.

    Raises:
        ConfigError: a library is missing.
        ExportRefused: it cannot be written in this format.
    """
    try:
        _WRITERS[format](program, path, signature)
    except ImportError as error:
        raise ConfigError(f"{error}; to export to ONNX: pip install 'penstock[torch]'") from error
    except Exception as error:  # both writers have errors of their own, and of no common kind
        raise ExportRefused(f"the model cannot be exported to {format}: {_reason(error)}", format=format) from error


@contextlib.contextmanager
def _asked(model: torch.nn.Module) -> Iterator[_Buffers]:
    """The model as it is served: in eval mode, without gradients, and what is compiled in it not.

    What it has changed of its buffers by then is known inside, and put back in the end.
    """
    import torch

    modes = [(module, module.training) for module in model.modules()]
    buffers = _Buffers(model)
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            model.eval()
            yield buffers
    finally:
        for module, training in modes:
            module.training = training
        buffers.put_back()


class _Buffers:
    """The buffers of a model, and what is in them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._before = [
            (module, key, f"{path}.{key}".lstrip("."), buffer, None if buffer is None else buffer.detach().clone())
            for path, module in model.named_modules()
            for key, buffer in module._buffers.items()
        ]

    def written(self) -> set[str]:
        """Those that have other values now.  One that was not there, or has grown, is a cache, and none of them."""
        return {
            name
            for module, key, name, _, content in self._before
            if content is not None
            and (now := module._buffers.get(key)) is not None
            and now.shape == content.shape
            and not _same(now, content)
        }

    def put_back(self) -> None:
        """Give the model the buffers that it had, with what was in them."""
        import torch

        for module, key, _, buffer, content in self._before:
            module._buffers[key] = buffer
            if buffer is not None and not _same(buffer, content):
                with torch.no_grad():
                    buffer.copy_(content)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same; True where PyTorch cannot say, as of sparse ones."""
    import torch

    try:
        return bool(torch.equal(one, other) or torch.equal(one.nan_to_num(), other.nan_to_num()))
    except RuntimeError:
        return True


def _trace(model: torch.nn.Module, signature: GraphSignature) -> Any:
    """The model as an exported program: takes the inputs by name, and returns a tuple of the outputs, in order."""
    import torch

    def forward(**inputs: Any) -> tuple[Any, ...]:
        return outputs_of(model(**inputs))

    example, batch = example_inputs(signature), torch.export.Dim("batch", min=1)
    shapes = {name: {0: batch} for name in example}
    flat = flat_module(model, forward, list(example))
    return torch.export.export(flat, (), kwargs=example, dynamic_shapes=shapes)


def outputs_of(answer: Any) -> tuple[Any, ...]:
    """The tensors of an answer, in order."""
    return tuple(split_outputs(answer)[0])


def flat_module(model: torch.nn.Module, forward: Callable[..., tuple[Any, ...]], names: Sequence[str]) -> Any:
    """A module around `model` which is called with keywords of these names, as `forward` answers."""
    import torch

    # torch.export reads the names of the inputs here: it cannot give a shape to what `**inputs` takes.
    keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    forward.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    flat = torch.nn.Module()
    flat.model = model
    flat.forward = forward
    flat.training = False
    return flat


def example_inputs(signature: GraphSignature) -> dict[str, Any]:
    """The tensors that a model is traced with, by name."""
    import numpy as np
    import torch

    return {
        tensor.name: torch.tensor(np.resize(array, (EXAMPLE_ROWS, *array.shape[1:])))
        for tensor in signature.inputs
        for array in [signature.example[tensor.name]]
    }


def _write_onnx(program: Any, path: Path, signature: GraphSignature) -> None:
    import torch

    inputs, outputs = [tensor.name for tensor in signature.inputs], [tensor.name for tensor in signature.outputs]
    # Outputs go by position; a name in the file must be that of no input and of no other output.
    for place in range(len(outputs)):
        while outputs[place] in inputs or outputs.count(outputs[place]) > 1:
            outputs[place] += "_output"
    written = torch.onnx.export(
        program, dynamo=True, input_names=inputs, output_names=outputs, external_data=False, verbose=False
    )
    assert written is not None
    written.save(path, external_data=False)


def _write_pt2(program: Any, path: Path, signature: GraphSignature) -> None:  # noqa: ARG001  # names are in the program
    import torch

    torch.export.save(program, path)


_WRITERS: Final[dict[str, Callable[[Any, Path, GraphSignature], None]]] = {"onnx": _write_onnx, "pt2": _write_pt2}


def _to_array(part: Any, name: str) -> np.ndarray[Any, Any]:
    import torch

    if not isinstance(part, torch.Tensor):
        raise ConfigError(
            f"output {name} is a {type(part).__name__}: the model must return a tensor, or a dict, tuple or dataclass "
            "of tensors"
        )
    if part.dtype == torch.bfloat16:
        raise ConfigError(f"output {name} is bfloat16, which numpy does not have: return output.float()")
    array: np.ndarray[Any, Any] = part.detach().resolve_conj().resolve_neg().cpu().numpy().copy()
    return array


def _reason(error: Exception) -> str:
    """What PyTorch says of the cause, without what it asks its users to report, and without colours."""
    _, _, cause = str(error).partition(CAUSE_BEGINS)
    text = COLOURS.sub("", cause.strip() or f"{type(error).__name__}: {error}".strip())
    return text if len(text) <= REASON_CHARS else f"{text[:REASON_CHARS]} [...]"
