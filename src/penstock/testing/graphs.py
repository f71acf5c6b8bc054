"""What every graph must do: subclass `GraphSuite`, override what opens graphs, and let pytest run it.

    class TestMyGraph(GraphSuite):
        def open_sums(self):
            return MyGraph(...)

Each test opens a graph of its own, and closes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from penstock.features.tensors import TensorSpec
from penstock.graphs.graph import Graph

SUM_INPUTS = (TensorSpec("left", "float32", (2,)), TensorSpec("right", "float32", (2,)))
SUM_OUTPUTS = (TensorSpec("total", "float32", (2,)), TensorSpec("gap", "float32", (2,)))
ID_INPUTS = (TensorSpec("id", "int64"),)
ID_OUTPUTS = (TensorSpec("same", "int64"),)
TEXT_INPUTS = (TensorSpec("text", "str"),)
TEXT_OUTPUTS = (TensorSpec("same", "str"),)

IDS = (2**24 + 1, 2**31 + 5, 2**40 + 7, -1, 2**63 - 1, -(2**63), 0)
TEXTS = ("", "a", "Zürich", "日本", "with\0nul", " ")


class GraphSuite:
    """The tests."""

    def open_sums(self) -> Graph:
        """A graph of `SUM_INPUTS` and `SUM_OUTPUTS`: left + right, and left - right."""
        raise NotImplementedError

    def open_ids(self) -> Graph:
        """A graph of `ID_INPUTS` and `ID_OUTPUTS` that gives what it takes."""
        raise NotImplementedError

    def open_texts(self) -> Graph | None:
        """A graph of `TEXT_INPUTS` and `TEXT_OUTPUTS` that gives what it takes; None where there is no text."""
        raise NotImplementedError

    def test_a_batch_of_any_size_is_answered_in_the_declared_order(self) -> None:
        """Of outputs, whatever the runtime calls them; the first batch does not settle the size of the next."""
        with closing(self.open_sums()) as graph:
            for rows in (2, 1, 100, 3, 1):
                batch = sums(rows)
                total, gap = graph.run(batch)
                assert_equal(total, batch["left"] + batch["right"])
                assert_equal(gap, batch["left"] - batch["right"])

    def test_a_graph_says_what_it_takes_and_gives(self) -> None:
        """In the words of its manifest."""
        with closing(self.open_sums()) as graph:
            assert tuple(graph.inputs) == SUM_INPUTS
            assert tuple(graph.outputs) == SUM_OUTPUTS

    def test_large_ids_arrive_exactly(self) -> None:
        """Also where float32, int32 or float64 would have another number."""
        ids = np.array(IDS, dtype=np.int64)
        with closing(self.open_ids()) as graph:
            assert_equal(graph.run({"id": ids})[0], ids)

    def test_text_arrives_exactly(self) -> None:
        """As objects of Python."""
        graph = self.open_texts()
        if graph is None:
            return
        texts = np.array(TEXTS, dtype=object)
        with closing(graph):
            found = graph.run({"text": texts})[0]
        assert found.dtype == object
        assert [type(one) for one in found] == [str] * len(TEXTS)
        assert found.tolist() == list(TEXTS)

    def test_a_number_of_another_dtype_is_refused_and_not_cast(self) -> None:
        """A cast would lose bits without a word."""
        batch = sums(2)
        with closing(self.open_sums()) as graph:
            for dtype in ("float64", "float16", "int64", "object"):
                assert_refused(graph, {**batch, "left": batch["left"].astype(dtype)}, "'left' must be float32")

    def test_an_id_of_another_dtype_is_refused_and_not_cast(self) -> None:
        """Nor made wider: who gives an int32 may have lost bits already."""
        with closing(self.open_ids()) as graph:
            for dtype in ("int32", "uint64", "float64"):
                assert_refused(graph, {"id": np.zeros(2, dtype=dtype)}, "'id' must be int64")

    def test_a_missing_input_is_refused_by_name(self) -> None:
        """No default stands for it."""
        with closing(self.open_sums()) as graph:
            assert_refused(graph, {"left": sums(2)["left"]}, "'right'")

    def test_what_a_graph_has_no_input_for_is_left_alone(self) -> None:
        """An exporter may have dropped what the model does not use."""
        batch = {**sums(2), "other": np.array(["text", "text"], dtype=object)}
        with closing(self.open_sums()) as graph:
            assert_equal(graph.run(batch)[0], batch["left"] + batch["right"])

    def test_inputs_stay_as_they_are(self) -> None:
        """Also those that may not be written to, or that are a part of a larger array."""
        whole = np.arange(12, dtype=np.float32).reshape(3, 4)
        batch = {"left": whole[:, ::2], "right": sums(3)["right"]}
        batch["right"].flags.writeable = False
        before = {name: array.copy() for name, array in batch.items()}
        with closing(self.open_sums()) as graph:
            total, _ = graph.run(batch)
        assert_equal(total, before["left"] + before["right"])
        for name, array in batch.items():
            assert_equal(array, before[name])

    def test_answers_stay_as_they_are_when_the_graph_runs_again_and_is_closed(self) -> None:
        """They are no view of memory that is used again."""
        with closing(self.open_sums()) as graph:
            first = graph.run(sums(5))
            before = [array.copy() for array in first]
            graph.run({name: array * 3 for name, array in sums(5).items()})
        for array, copy in zip(first, before, strict=True):
            assert_equal(array, copy)

    def test_closing_twice_does_nothing(self) -> None:
        """As with every resource here."""
        graph = self.open_sums()
        graph.close()
        graph.close()


@contextmanager
def closing(graph: Graph) -> Iterator[Graph]:
    """The graph, closed at the end."""
    try:
        yield graph
    finally:
        graph.close()


def sums(rows: int) -> dict[str, np.ndarray[Any, Any]]:
    """Small whole numbers, so that every runtime has the same sums."""
    numbers = np.arange(rows * 4, dtype=np.float32).reshape(2, rows, 2)
    return {"left": numbers[0].copy(), "right": numbers[1][::-1].copy()}


def assert_equal(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """Of one dtype, one shape, and equal."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tolist() == expected.tolist()


def assert_refused(graph: Graph, batch: dict[str, np.ndarray[Any, Any]], said: str) -> None:
    """As a `TypeError` that says `said`."""
    try:
        graph.run(batch)
    except TypeError as error:
        assert said in str(error), error  # noqa: PT017  # pytest is no library of this package
    else:
        raise AssertionError(f"it was not refused that {said}")
