"""The suite of `penstock.testing.graphs` over the graphs that need no framework."""

from __future__ import annotations

from onnx_bytes import identity_named, sums_graph
from penstock.graphs.graph import MemoryGraph
from penstock.graphs.runtimes import open_graph
from penstock.testing.graphs import (
    ID_INPUTS,
    ID_OUTPUTS,
    SUM_INPUTS,
    SUM_OUTPUTS,
    TEXT_INPUTS,
    TEXT_OUTPUTS,
    GraphSuite,
)


class TestMemoryGraph(GraphSuite):
    def open_sums(self):
        def add(inputs):
            return [inputs["left"] + inputs["right"], inputs["left"] - inputs["right"]]

        return MemoryGraph(add, SUM_INPUTS, SUM_OUTPUTS)

    def open_ids(self):
        return MemoryGraph(lambda inputs: [inputs["id"]], ID_INPUTS, ID_OUTPUTS)

    def open_texts(self):
        return MemoryGraph(lambda inputs: [inputs["text"]], TEXT_INPUTS, TEXT_OUTPUTS)


class TestOnnxGraph(GraphSuite):
    def open_sums(self):
        return open_graph("onnx", sums_graph(), inputs=SUM_INPUTS, outputs=SUM_OUTPUTS)

    def open_ids(self):
        return open_graph("onnx", identity_named("id", "int64"), inputs=ID_INPUTS, outputs=ID_OUTPUTS)

    def open_texts(self):
        return open_graph("onnx", identity_named("text", "str"), inputs=TEXT_INPUTS, outputs=TEXT_OUTPUTS)
