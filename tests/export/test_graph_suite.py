"""The suite of `penstock.testing.graphs` over the runtimes of PyTorch and TensorFlow, and what is their own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import torch

from penstock.errors import ArtifactInvalid
from penstock.features.tensors import TensorSpec
from penstock.graphs.runtimes import open_graph
from penstock.testing.graphs import (
    ID_INPUTS,
    ID_OUTPUTS,
    SUM_INPUTS,
    SUM_OUTPUTS,
    TEXT_INPUTS,
    TEXT_OUTPUTS,
    GraphSuite,
    sums,
)


class Sums(torch.nn.Module):
    def forward(self, right, left):
        return {"b": left + right, "a": left - right}


class Same(torch.nn.Module):
    def forward(self, id):  # noqa: A002  # the name of the input
        return id.clone()


class Counting(torch.nn.Module):
    """Answers with a buffer of its own, which it changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        self.seen += x.sum()
        return self.seen


def saved(module, batch, *, dynamic=True):
    axis = {0: torch.export.Dim("batch")} if dynamic else None
    program = torch.export.export(module, (), kwargs=batch, dynamic_shapes=dict.fromkeys(batch, axis))
    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue()


def pair_of_numbers():
    return {"right": torch.zeros(4, 2), "left": torch.zeros(4, 2)}


class TestTorchGraph(GraphSuite):
    def open_sums(self):
        content = saved(Sums(), pair_of_numbers())
        return open_graph("pt2", content, inputs=SUM_INPUTS, outputs=SUM_OUTPUTS)

    def open_ids(self):
        content = saved(Same(), {"id": torch.zeros(4, dtype=torch.int64)})
        return open_graph("pt2", content, inputs=ID_INPUTS, outputs=ID_OUTPUTS)

    def open_texts(self):
        return None  # PyTorch has no text


class SavedSums(tf.Module):
    @tf.function(
        input_signature=[tf.TensorSpec((None, 2), tf.float32, "right"), tf.TensorSpec((None, 2), tf.float32, "left")]
    )
    def model(self, right, left):
        return {"gap": left - right, "total": left + right}


class SavedSame(tf.Module):
    def __init__(self, name, dtype):
        super().__init__()
        # An unused variable would be lost with the loaded object; this one is read.
        self.nothing = tf.Variable(0 if dtype == tf.int64 else "", dtype=dtype)
        self.model = tf.function(self._model, input_signature=[tf.TensorSpec((None,), dtype, name)])

    def _model(self, value):
        return {"same": value + self.nothing}


def save_model(folder, module):
    tf.saved_model.save(module, os.fspath(folder), signatures={"model": module.model})
    return folder


class TestTensorflowGraph(GraphSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path / "saved_model"

    def open_sums(self):
        return open_graph("saved_model", save_model(self.path, SavedSums()), inputs=SUM_INPUTS, outputs=SUM_OUTPUTS)

    def open_ids(self):
        source = save_model(self.path, SavedSame("id", tf.int64))
        return open_graph("saved_model", source, inputs=ID_INPUTS, outputs=ID_OUTPUTS)

    def open_texts(self):
        source = save_model(self.path, SavedSame("text", tf.string))
        return open_graph("saved_model", source, inputs=TEXT_INPUTS, outputs=TEXT_OUTPUTS)


# -- PyTorch ----------------------------------------------------------------------------------------------------------


def test_a_torch_graph_that_answers_with_its_own_buffer_gives_copies():
    graph = open_graph(
        "pt2",
        saved(Counting(), {"x": torch.zeros(2)}, dynamic=False),
        inputs=[TensorSpec("x", "float32")],
        outputs=[TensorSpec("seen", "float32")],
    )
    first = graph.run({"x": np.ones(2, dtype=np.float32)})[0]
    second = graph.run({"x": np.ones(2, dtype=np.float32)})[0]
    assert (first.tolist(), second.tolist()) == ([2.0, 2.0], [4.0, 4.0])


@pytest.mark.parametrize(
    ("inputs", "outputs", "said"),
    [
        (
            (TensorSpec("other", "float32", (2,)), SUM_INPUTS[1]),
            SUM_OUTPUTS,
            r"inputs \['left', 'right'\], but its manifest",
        ),
        (SUM_INPUTS[:1], SUM_OUTPUTS, r"manifest lists \['left'\]"),
        (
            (TensorSpec("left", "float64", (2,)), SUM_INPUTS[1]),
            SUM_OUTPUTS,
            "'left' of the graph has the dtype float32",
        ),
        (SUM_INPUTS, SUM_OUTPUTS[:1], r"2 outputs, but its manifest lists \['total'\]"),
        (SUM_INPUTS, (SUM_OUTPUTS[0], TensorSpec("gap", "int64", (2,))), "'gap' of the graph has the dtype float32"),
    ],
)
@pytest.mark.parametrize("kind", ["pt2", "saved_model"])
def test_a_graph_that_is_not_what_the_manifest_says_is_refused(kind, inputs, outputs, said, tmp_path):
    folder = tmp_path / "saved_model"
    source = saved(Sums(), pair_of_numbers()) if kind == "pt2" else save_model(folder, SavedSums())
    with pytest.raises(ArtifactInvalid, match=said):
        open_graph(kind, source, inputs=inputs, outputs=outputs)


def test_a_torch_graph_with_arguments_by_position_is_refused():
    file = io.BytesIO()
    torch.export.save(torch.export.export(Same(), (torch.zeros(2, dtype=torch.int64),)), file)
    with pytest.raises(ArtifactInvalid, match="takes 1 positional arguments"):
        open_graph("pt2", file.getvalue(), inputs=ID_INPUTS, outputs=ID_OUTPUTS)


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\3\4 cut"])
def test_bytes_that_are_no_torch_graph_are_refused(content):
    with pytest.raises(ArtifactInvalid, match="torch cannot open the pt2 graph"):
        open_graph("pt2", content, inputs=ID_INPUTS, outputs=ID_OUTPUTS)


# -- TensorFlow -------------------------------------------------------------------------------------------------------


def test_a_saved_model_without_the_signature_is_refused(tmp_path):
    module = SavedSums()
    tf.saved_model.save(module, os.fspath(tmp_path / "m"), signatures={"serving_default": module.model})
    with pytest.raises(ArtifactInvalid, match="has no signature 'model', but"):
        open_graph("saved_model", tmp_path / "m", inputs=SUM_INPUTS, outputs=SUM_OUTPUTS)


def test_a_folder_that_is_no_saved_model_is_refused(tmp_path):
    with pytest.raises(ArtifactInvalid, match="tensorflow cannot open the saved_model graph"):
        open_graph("saved_model", tmp_path, inputs=SUM_INPUTS, outputs=SUM_OUTPUTS)


# -- each in a process of its own -------------------------------------------------------------------------------------

OPENED = """
    import os, sys
    import numpy as np
    from pathlib import Path
    from penstock.graphs.runtimes import open_graph
    from penstock.testing.graphs import SUM_INPUTS, SUM_OUTPUTS, sums
    source = Path(sys.argv[2])
    graph = open_graph(sys.argv[1], source, inputs=SUM_INPUTS, outputs=SUM_OUTPUTS, threads=3)
    graph.run(sums(5))
    graph.run(sums(500))
"""
THREADS = {
    "pt2": "import torch; assert torch.get_num_threads() == 3",
    "saved_model": """
    import tensorflow as tf
    assert tf.config.threading.get_intra_op_parallelism_threads() == 3
    assert tf.config.threading.get_inter_op_parallelism_threads() == 1
    """,
}


@pytest.mark.parametrize("kind", ["pt2", "saved_model"])
def test_a_runtime_writes_nothing_and_uses_the_threads_it_was_given(kind, tmp_path):
    if kind == "pt2":
        source = tmp_path / "model.pt2"
        source.write_bytes(saved(Sums(), pair_of_numbers()))
    else:
        source = save_model(tmp_path / "saved_model", SavedSums())
    program = textwrap.dedent(OPENED) + textwrap.dedent(THREADS[kind])
    ran = subprocess.run(
        [sys.executable, "-c", program, kind, os.fspath(source)],
        capture_output=True,
        text=True,
        check=False,
        # another test of this process may have said how much TensorFlow says
        env={name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
        | {"PYTHONPATH": os.fspath(Path(sys.modules["penstock"].__file__).parents[1])},
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_tensorflow_that_ran_already_keeps_its_threads(tmp_path):
    source = save_model(tmp_path / "saved_model", SavedSums())
    tf.constant(1.0) + 1.0
    graph = open_graph("saved_model", source, inputs=SUM_INPUTS, outputs=SUM_OUTPUTS, threads=7)
    assert len(graph.run(sums(2))) == 2
