from __future__ import annotations

import sys
from typing import get_args

import numpy as np
import pytest

import penstock.graphs.onnx_graph
from onnx_bytes import embedding, identity_named, model, node, sums_graph, weights
from penstock.artifact.manifest import GraphFormat
from penstock.config import FORMATS
from penstock.errors import ArtifactInvalid, ConfigError
from penstock.features.tensors import TensorSpec
from penstock.graphs.runtimes import RUNTIMES, open_graph
from penstock.testing.graphs import ID_INPUTS, ID_OUTPUTS, SUM_INPUTS, SUM_OUTPUTS


def open_sums(inputs=SUM_INPUTS, outputs=SUM_OUTPUTS, threads=1):
    return open_graph("onnx", sums_graph(), inputs=inputs, outputs=outputs, threads=threads)


def test_an_unknown_format_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="'pickle' is not a supported format; use 'onnx', 'pt2', 'saved_model'"):
        open_graph("pickle", b"", inputs=[], outputs=[])


@pytest.mark.parametrize("kind", ["onnx", "pt2", "saved_model"])
def test_a_missing_library_is_told_with_what_installs_it(kind, monkeypatch):
    runtime = RUNTIMES[kind]
    monkeypatch.setitem(sys.modules, runtime.library, None)  # as if it were not there, where it is
    monkeypatch.delitem(sys.modules, runtime.module, raising=False)
    with pytest.raises(ConfigError) as caught:
        open_graph(kind, b"", inputs=[], outputs=[])
    assert str(caught.value) == (
        f"a graph of the format {kind!r} needs {runtime.library}, which is not installed: "
        f"pip install 'penstock[{runtime.extra}]'"
    )


@pytest.mark.parametrize(
    ("inputs", "outputs", "said"),
    [
        ((SUM_INPUTS[0],), SUM_OUTPUTS, r"inputs \['left', 'right'\], but its manifest lists \['left'\]"),
        ((*SUM_INPUTS, TensorSpec("more", "float32")), SUM_OUTPUTS, "'more'"),
        (
            (SUM_INPUTS[0], TensorSpec("right", "int64")),
            SUM_OUTPUTS,
            "input 'right' of the graph has the dtype float32",
        ),
        (
            (SUM_INPUTS[0], TensorSpec("right", "float32", (3,))),
            SUM_OUTPUTS,
            r"input 'right' of the graph has the axes \['batch', 2\], but its manifest lists \['batch', 3\]",
        ),
        ((SUM_INPUTS[0], TensorSpec("right", "float32")), SUM_OUTPUTS, r"but its manifest lists \['batch'\]"),
        (SUM_INPUTS, SUM_OUTPUTS[:1], r"2 outputs, but its manifest lists \['total'\]"),
        (SUM_INPUTS, (SUM_OUTPUTS[0], TensorSpec("gap", "str")), "output 'gap' of the graph has the dtype float32"),
    ],
)
def test_a_graph_that_is_not_what_its_manifest_says_is_refused(inputs, outputs, said):
    with pytest.raises(ArtifactInvalid, match=said):
        open_sums(inputs, outputs)


def test_a_graph_may_have_an_axis_of_its_own_length_where_its_manifest_names_none():
    open_sums((SUM_INPUTS[0], TensorSpec("right", "float32", (None,))), SUM_OUTPUTS).close()


def test_bytes_that_are_no_graph_are_refused_in_the_librarys_words():
    with pytest.raises(
        ArtifactInvalid, match=r"onnxruntime cannot open the onnx graph: InvalidProtobuf: .*parsing failed"
    ):
        open_graph("onnx", b"garbage", inputs=ID_INPUTS, outputs=ID_OUTPUTS)


def test_what_the_library_says_in_several_lines_is_one_sentence(monkeypatch):
    def fail(*_, **__):
        raise ValueError("no such opset:\n  999\n")

    monkeypatch.setattr(penstock.graphs.onnx_graph, "OnnxGraph", fail)
    with pytest.raises(ArtifactInvalid, match=r"onnx graph: ValueError: no such opset: 999$"):
        open_graph("onnx", b"", inputs=ID_INPUTS, outputs=ID_OUTPUTS)


def test_an_unknown_operator_is_refused_by_name():
    content = model([node("Launder", ["id"], ["out"])], [("id", "int64", ("n",))], [("out", "int64", ("n",))])
    with pytest.raises(ArtifactInvalid, match="Launder"):
        open_graph("onnx", content, inputs=ID_INPUTS, outputs=ID_OUTPUTS)


def test_a_graph_reads_no_file_besides_itself(tmp_path, monkeypatch):
    (tmp_path / "secret.bin").write_bytes(np.ones(2, dtype=np.float32).tobytes())
    monkeypatch.chdir(tmp_path)
    content = model(
        [weights("w", np.ones(2, dtype=np.float32), file="secret.bin"), node("Mul", ["x", "w"], ["y"])],
        [("x", "float32", ("n", 2))],
        [("y", "float32", ("n", 2))],
    )
    with pytest.raises(ArtifactInvalid, match="secret"):
        open_graph(
            "onnx", content, inputs=[TensorSpec("x", "float32", (2,))], outputs=[TensorSpec("y", "float32", (2,))]
        )


def test_a_graph_is_opened_from_a_file_too(tmp_path):
    (tmp_path / "model.onnx").write_bytes(identity_named("id", "int64"))
    graph = open_graph("onnx", tmp_path / "model.onnx", inputs=ID_INPUTS, outputs=ID_OUTPUTS)
    assert graph.run({"id": np.array([3])})[0].tolist() == [3]


@pytest.mark.parametrize("threads", [1, 3])
def test_onnx_runtime_uses_the_threads_it_was_given(threads):
    options = open_sums(threads=threads)._session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (threads, 1)


def test_onnx_runtime_writes_nothing_even_where_a_run_fails(capfd):
    table, slope = np.ones((3, 2), dtype=np.float32), np.ones(2, dtype=np.float32)
    graph = open_graph(
        "onnx",
        embedding(table, slope),
        inputs=[TensorSpec("x", "float32", (2,)), TensorSpec("id", "int64")],
        outputs=[TensorSpec("p", "float32")],
    )
    with pytest.raises(Exception, match="out of data bounds"):
        graph.run({"x": np.ones((1, 2), dtype=np.float32), "id": np.array([3])})
    assert capfd.readouterr() == ("", "")


def test_the_formats_are_the_same_wherever_they_are_named():
    assert tuple(RUNTIMES) == FORMATS == get_args(GraphFormat)
