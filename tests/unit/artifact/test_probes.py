from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.artifact.probes import path_of, read_recorded, read_rows, write_recorded
from penstock.artifact.recorded import Recorded
from penstock.errors import ArtifactInvalid, ConfigError
from penstock.features.tensors import TensorSpec

NAMES = ["x", "..", ".", "a/b", "../../etc/passwd", "", " ", "Ü" * 100, "n" * 300, "A", "a", "%2F", "nul\0", "-"]
BIG = 2**63 - 1


def reader(folder):
    return lambda path: (folder / path).read_bytes()


def read(folder, *tensors, rows=2):
    return read_recorded(reader(folder), "probes", rows=rows, inputs=tensors, outputs=[])


def written(folder, **inputs):
    write_recorded(folder / "probes", Recorded([{}, {}], inputs, {}))
    return folder / "probes" / "inputs"


def test_what_was_recorded_is_read_bit_for_bit(tmp_path):
    rows = [{"age": 0.1, "id": BIG, "name": "Zürich"}, {"age": None, "id": -1, "name": ""}]
    inputs = {
        "x": np.array([[np.nan, -0.0], [1e-45, np.inf]], dtype=np.float32),
        "id": np.array([BIG, -1]),
        "name": np.array(["Zü\0rich", ""], dtype=object),
        "flag": np.array([True, False]),
        "fixed": np.array(["ab", "c"]),
    }
    outputs = {"p": np.arange(6, dtype=np.float64).reshape(2, 3)[:, ::-1]}
    write_recorded(tmp_path / "probes", Recorded(rows, inputs, outputs))
    tensors = [
        TensorSpec("x", "float32", (2,)),
        TensorSpec("id", "int64"),
        TensorSpec("name", "str"),
        TensorSpec("flag", "bool"),
        TensorSpec("fixed", "str"),
    ]
    found = read_recorded(
        reader(tmp_path), "probes", rows=2, inputs=tensors, outputs=[TensorSpec("p", "float64", (None,))]
    )
    assert found.rows == rows == read_rows(reader(tmp_path), "probes")
    for name in ("x", "id", "flag"):
        assert found.inputs[name].tobytes() == inputs[name].tobytes()
    assert found.inputs["name"].tolist() == inputs["name"].tolist()
    assert found.inputs["fixed"].tolist() == ["ab", "c"]
    assert found.outputs["p"].tolist() == outputs["p"].tolist()


def test_each_name_has_a_file_of_its_own_inside_the_folder(tmp_path):
    inputs = {name: np.full(2, place) for place, name in enumerate(NAMES)}
    folder = written(tmp_path, **inputs)
    assert len(list(folder.iterdir())) == len(NAMES)
    assert {path.parent for path in tmp_path.rglob("*.npy")} == {folder}
    found = read(tmp_path, *(TensorSpec(name, "int64") for name in NAMES))
    assert {name: array[0] for name, array in found.inputs.items()} == {n: i for i, n in enumerate(NAMES)}


def test_a_name_of_200_bytes_is_the_name_of_its_file_and_a_longer_one_is_hashed():
    assert path_of("inputs", "n" * 200, is_text=False) == f"inputs/{'n' * 200}.npy"
    assert len(path_of("inputs", "n" * 201, is_text=False)) == len("inputs/.npy") + 64


@given(st.text(max_size=400))
def test_no_name_of_an_input_leads_out_of_the_folder(name):
    path = path_of("inputs", name, is_text=False)
    folder, stem = path.split("/")
    assert folder == "inputs"
    assert stem.endswith(".npy")
    assert len(stem) <= 204
    assert stem.isascii()


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (TensorSpec("x", "float64", (2,)), "'x' is float32, and float64 is expected"),
        (TensorSpec("x", "float32"), r"has the shape \(2, 2\), and \(2,\) is expected"),
        (TensorSpec("x", "float32", (3,)), r"has the shape \(2, 2\), and \(2, 3\) is expected"),
        (TensorSpec("x", "float32", (None, 1)), r"has the shape \(2, 2\), and \(2, None, 1\) is expected"),
    ],
)
def test_an_array_of_another_dtype_or_shape_is_refused_by_its_file(tmp_path, tensor, said):
    written(tmp_path, x=np.zeros((2, 2), dtype=np.float32))
    with pytest.raises(ArtifactInvalid, match=f"probes/inputs/x.npy: .*{said}") as caught:
        read(tmp_path, tensor)
    assert caught.value.file == "probes/inputs/x.npy"


def test_another_number_of_rows_is_refused(tmp_path):
    written(tmp_path, x=np.zeros(2))
    with pytest.raises(ArtifactInvalid, match=r"probes/rows.json has 2 rows, and 3 are expected"):
        read(tmp_path, TensorSpec("x", "float64"), rows=3)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"[[]]", b"\xff", b"[" * 100_000])
def test_rows_that_are_no_list_of_objects_are_refused(tmp_path, content):
    written(tmp_path)
    (tmp_path / "probes" / "rows.json").write_bytes(content)
    with pytest.raises(ArtifactInvalid, match=r"probes/rows.json is no list of rows"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b'"ab"', b"[1, 2]", b'["a", ["b"]]', b'["a", null]', b"\xff"])
def test_text_that_is_no_list_of_strings_is_refused(tmp_path, content):
    folder = written(tmp_path, name=np.array(["a", "b"], dtype=object))
    (folder / "name.json").write_bytes(content)
    with pytest.raises(ArtifactInvalid, match=r"probes/inputs/name.json"):
        read(tmp_path, TensorSpec("name", "str"))


def npy(array, **header) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=True, **header)
    return file.getvalue()


def claims(shape) -> bytes:
    """A file whose header promises more than there is."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(16)


GOOD = npy(np.zeros(2))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        GOOD[:-1],
        GOOD + b"\0",
        GOOD[:20],
        npy(np.zeros(2), version=(2, 0)),
        npy(np.array([{}, {}], dtype=object)),
        npy(np.zeros(2, dtype=[("a", "f4"), ("b", "f4")])),
        npy(np.zeros((2, 2)).T),
        npy(np.zeros(2).astype(">f8")),
        claims((2**60,)),
        claims((2**40, 2**40)),
        claims((-2, -1)),
        claims((2, True)),
    ],
)
def test_a_file_that_is_no_plain_array_of_its_size_is_refused_and_nothing_is_unpickled(tmp_path, content):
    folder = written(tmp_path, x=np.zeros(2))
    assert read(tmp_path, TensorSpec("x", "float64")).inputs["x"].tolist() == [0.0, 0.0]
    (folder / "x.npy").write_bytes(content)
    with pytest.raises(ArtifactInvalid, match=r"probes/inputs/x.npy is no array"):
        read(tmp_path, TensorSpec("x", "float64"))


def test_a_header_with_any_byte_changed_is_an_array_or_is_refused(tmp_path):
    folder = written(tmp_path, x=np.zeros(2))
    for place in range(len(GOOD) - 16):
        for value in (0, ord("("), ord("9"), 0xFF):
            (folder / "x.npy").write_bytes(GOOD[:place] + bytes([value]) + GOOD[place + 1 :])
            with contextlib.suppress(ArtifactInvalid):
                assert read(tmp_path, TensorSpec("x", "float64")).inputs["x"].shape == (2,)


def test_recorded_arrays_have_as_many_rows_as_there_are():
    with pytest.raises(ConfigError, match="input 'x' has 3 rows, but there are 2 rows"):
        Recorded([{}, {}], {"x": np.zeros(3)}, {})
    with pytest.raises(ConfigError, match="output 'p' has a single value, but there are 2 rows"):
        Recorded([{}, {}], {}, {"p": np.array(1.0)})
