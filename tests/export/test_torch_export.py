import collections
import dataclasses
import re
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from penstock.errors import ConfigError, ExportRefused  # noqa: E402
from penstock.export.exporter import GraphSignature  # noqa: E402
from penstock.export.naming import describe_outputs, name_outputs  # noqa: E402
from penstock.export.torch_model import torch_exporter  # noqa: E402
from penstock.features.tensors import TensorSpec  # noqa: E402
from penstock.graphs.onnx_graph import OnnxGraph  # noqa: E402
from penstock.graphs.torch_graph import TorchGraph  # noqa: E402

GRAPHS = {"onnx": OnnxGraph, "pt2": TorchGraph}
ROWS = {
    "x": np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32),
    "occupation": np.arange(9, dtype=np.int64),
}


class Affairs(nn.Module):
    """An embedding, a dropout, and a frozen layer that stays in eval mode while the rest trains."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 4)
        self.norm = nn.BatchNorm1d(7)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(7, 1)

    def forward(self, x, occupation):
        both = torch.cat([x, self.embed(occupation)], dim=1)
        return {"probability": torch.sigmoid(self.out(self.drop(self.norm(both)))).squeeze(1), "id": occupation}


class Returning(nn.Module):
    """Returns what a function makes of its inputs."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, **inputs):
        return self.function(**inputs)


def tensors_of(inputs):
    return tuple(TensorSpec(name, array.dtype.name, array.shape[1:]) for name, array in inputs.items())


def exported(exporter, inputs, folder, format_, *, outputs=None):
    """What the model answered by name, and the graph of it that was written."""
    exporter.check_inputs(tensors_of(inputs))
    answer = exporter.answer(inputs)
    names = name_outputs(answer, outputs)
    described = describe_outputs(names, answer.arrays, len(next(iter(inputs.values()))))
    written = exporter.write(format_, folder, GraphSignature(tensors_of(inputs), described, inputs))
    graph = GRAPHS[format_](folder / written, inputs=tensors_of(inputs), outputs=described, threads=1)
    return dict(zip(names, answer.arrays, strict=True)), graph


def first(inputs, rows):
    return {name: array[:rows] for name, array in inputs.items()}


@pytest.mark.parametrize("format_", ["onnx", "pt2"])
def test_a_graph_answers_as_the_model_in_eval_mode_for_any_batch(tmp_path, format_, capfd):
    model = Affairs().train()
    model.norm.eval()
    modes = [module.training for module in model.modules()]
    answered, graph = exported(torch_exporter(model), ROWS, tmp_path, format_)
    assert [module.training for module in model.modules()] == modes
    assert [tensor.name for tensor in graph.outputs] == ["probability", "id"]
    for rows in (1, 2, 9):
        probability, ids = graph.run(first(ROWS, rows))
        assert np.allclose(probability, answered["probability"][:rows], rtol=1e-5, atol=1e-6)
        assert (ids == answered["id"][:rows]).all()
    graph.close()
    written = capfd.readouterr()
    assert (written.out, written.err) == ("", "")


def test_only_one_file_is_written(tmp_path):
    exported(torch_exporter(Affairs()), ROWS, tmp_path, "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_modes_are_put_back_where_the_model_raises(tmp_path):
    model = nn.Sequential(nn.Linear(3, 1), nn.Dropout()).train()
    model[0].eval()
    with pytest.raises(ConfigError, match=r"model\(x=float32\[9, 3\]\) raised"):
        torch_exporter(model).answer({"x": ROWS["x"]})
    assert [module.training for module in model.modules()] == [True, False, True]


class Remembering(nn.Module):
    """Writes to its buffers also in eval mode: to one in place, and to one with a new tensor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("none", None)

    def forward(self, x):
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean


def test_buffers_are_put_back_after_the_model_was_asked():
    model = Remembering()
    before = dict(model.named_buffers())
    exporter = torch_exporter(model)
    first_time, second_time = (exporter.answer({"x": ROWS["x"]}).arrays[0] for _ in range(2))
    assert (first_time == second_time).all()
    assert all(there is before[name] and not there.any() for name, there in model.named_buffers())


@pytest.mark.parametrize("format_", ["onnx", "pt2"])
def test_a_model_that_remembers_what_it_was_asked_is_refused(tmp_path, format_):
    model = Remembering()
    with pytest.raises(ExportRefused, match="writes to its buffer 'calls', 'mean' during inference"):
        exported(torch_exporter(model), {"x": ROWS["x"]}, tmp_path, format_)
    assert list(tmp_path.iterdir()) == []
    assert not model.calls.any()


@dataclasses.dataclass
class Fields:
    loss: object
    logits: object


class Pair(NamedTuple):
    low: object
    high: object


class ModelOutput(collections.OrderedDict):
    """As Hugging Face's models return it."""


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x: x, ("output",)),
        (lambda x: (x,), ("output",)),
        (lambda x: [x, x + 1], ("output_0", "output_1")),
        (lambda x: {"b": x, "a": x + 1}, ("b", "a")),
        (lambda x: {"b": x, "past": None}, ("b",)),
        (lambda x: Fields(loss=None, logits=x), ("logits",)),
        (lambda x: Pair(x, x + 1), ("low", "high")),
        (lambda x: ModelOutput(logits=x, hidden=x + 1), ("logits", "hidden")),
    ],
)
def test_outputs_are_named_as_the_model_names_them(function, names):
    answer = torch_exporter(Returning(function)).answer({"x": ROWS["x"]})
    assert name_outputs(answer, None) == names
    assert (answer.arrays[0] == ROWS["x"]).all()


def test_outputs_without_names_go_by_position_whatever_the_graph_makes_of_them(tmp_path):
    def model(x, occupation, unused):
        """An output that is an input, one that is there twice, one in float64, and an input that nothing reads."""
        double = x.double().sum(1)
        return occupation, double, double, x, x > 0

    inputs = {**ROWS, "unused": ROWS["occupation"]}
    names = ["occupation", "sum", "again", "same", "occupation_output"]
    answered, graph = exported(torch_exporter(Returning(model)), inputs, tmp_path, "onnx", outputs=names)
    assert [array.dtype.name for array in answered.values()] == ["int64", "float64", "float64", "float32", "bool"]
    for name, array in zip(names, graph.run(first(inputs, 4)), strict=True):
        assert array.dtype == answered[name].dtype
        assert (array == answered[name][:4]).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch.compile's own imports
def test_what_wraps_a_model_is_taken_off(tmp_path):
    model = Affairs()
    model.embed = torch.compile(model.embed)
    wrapped = torch.compile(nn.DataParallel(model))
    answered, graph = exported(torch_exporter(wrapped), ROWS, tmp_path, "onnx")
    assert np.allclose(graph.run(first(ROWS, 2))[0], answered["probability"][:2], rtol=1e-5, atol=1e-6)


@pytest.fixture
def process_group(tmp_path):
    """A group of this process alone."""
    import torch.distributed

    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # FSDP without a GPU
def test_sharded_models_are_refused_and_what_to_do_is_said(process_group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    old = nn.Sequential(FullyShardedDataParallel(nn.Linear(3, 1), device_id=torch.device("cpu")))
    new = nn.Sequential(nn.Linear(3, 1))
    fully_shard(new[0], mesh=init_device_mesh("cpu", (1,)))
    for model in (old, new):
        with pytest.raises(ConfigError, match=r"0 is sharded by FSDP.*get_model_state_dict"):
            torch_exporter(model)


def test_a_model_without_weights_is_refused():
    with pytest.raises(ConfigError, match="meta device"):
        torch_exporter(nn.Linear(3, 1, device="meta"))


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (TensorSpec("comment", "str"), "'comment' is Text, but PyTorch has no tensors of text"),
        (TensorSpec("marital status", "int64"), "'marital status' cannot be one"),
        (TensorSpec("class", "int64"), "'class' cannot be one"),
    ],
)
def test_inputs_that_pytorch_cannot_take_are_refused(tensor, reason):
    with pytest.raises(ConfigError, match=reason):
        torch_exporter(nn.Linear(3, 1)).check_inputs([TensorSpec("x", "float32", (3,)), tensor])


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.bfloat16(), "output number 0 is bfloat16"),
        (lambda x: {"a": 1.0}, "output a is a float: the model must return a tensor"),
        (lambda x: {1: x}, "a dict with the key 1"),
        (lambda x: (x, (x, x)), "output number 1 is a tuple"),
    ],
)
def test_outputs_that_cannot_be_kept_are_refused(function, reason):
    with pytest.raises(ConfigError, match=reason):
        torch_exporter(Returning(function)).answer({"x": ROWS["x"]})


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.reshape(7, -1), "torch.export cannot trace the model for batches of any size"),
        (lambda x: x if x.sum() > 0 else -x, "torch.export cannot trace"),
    ],
    ids=["a batch of one size", "a branch that depends on values"],
)
@pytest.mark.parametrize("format_", ["onnx", "pt2"])
def test_what_cannot_be_traced_is_refused(tmp_path, function, reason, format_):
    with pytest.raises(ExportRefused, match=reason) as caught:
        exported(torch_exporter(Returning(function)), first({"x": ROWS["x"]}, 7), tmp_path, format_)
    assert caught.value.format == format_
    assert list(tmp_path.iterdir()) == []


def test_of_what_onnx_has_no_word_for_the_cause_is_told_and_nothing_else(tmp_path):
    exporter = torch_exporter(Returning(lambda x: torch.sort(x, dim=1, stable=True)[0]))
    with pytest.raises(
        ExportRefused, match=r"cannot be exported to onnx: .*No ONNX function found for .*sort"
    ) as caught:
        exported(exporter, first({"x": ROWS["x"]}, 7), tmp_path, "onnx")
    assert "\x1b" not in str(caught.value)
    assert "GitHub" not in str(caught.value)


def test_the_user_model_is_not_the_one_that_is_moved(monkeypatch):
    """There is no GPU here, so a model says of itself that it is on one."""
    model = nn.Linear(3, 1)
    moved = []
    monkeypatch.setattr(nn.Linear, "to", lambda self, device: moved.append((self, device)) or self)
    monkeypatch.setattr(nn.Linear, "buffers", lambda self: iter([Elsewhere()]))
    exporter = torch_exporter(model)
    ((copied, device),) = moved
    assert device == "cpu"
    assert copied is not model
    assert exporter.answer({"input": ROWS["x"]}).arrays[0].shape == (9, 1)


class Elsewhere:
    device = torch.device("cuda")


WITHOUT_ONNXSCRIPT = """
import sys
sys.modules["onnxscript"] = None  # as if it were not there, where it is
import penstock as ps, torch
features = ps.Features({"input": ps.features.Numeric(), "more": ps.features.Numeric()}, concat_into="input")
try:
    ps.export.save(torch.nn.Linear(2, 1), sys.argv[1], features=features, reference_rows=[{"input": 1.0, "more": 2.0}])
except ps.ConfigError as error:
    print(error)
"""


def test_without_onnxscript_the_message_says_what_to_install(tmp_path):
    command = [sys.executable, "-c", WITHOUT_ONNXSCRIPT, str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250)
    assert re.search(r"onnxscript.*pip install 'penstock\[torch\]'", done.stdout)
    assert list(tmp_path.iterdir()) == []
