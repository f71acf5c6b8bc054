"""What goes in and what comes out, in every format, for one item and for a list of them."""

from __future__ import annotations

import io

import msgspec
import numpy as np
import pytest
from served import serving

SOURCE = """
import numpy as np
import penstock as ps

class Sum(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, xs: list[dict[str, list[float]]]) -> list[float]:
        return [sum(x["x"]) for x in xs]

class Reverse(ps.Stage):
    def predict(self, x: bytes) -> bytes:
        return x[::-1]

class Double(ps.Stage):
    def predict(self, x: np.ndarray) -> np.ndarray:
        return x * 2

class Matrix(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, xs: list[float]) -> np.ndarray:
        return np.array([[x, x * 2] for x in xs])

class Count(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, xs: list[int]) -> list[int]:
        return [x + 1 for x in xs]

sums = ps.Service(Sum, name="sums")
reverse = ps.Service(Reverse, name="reverse")
double = ps.Service(Double, name="double")
matrix = ps.Service(Matrix, name="matrix")
count = ps.Service(Count, name="count", max_in_flight=8)
strange = ps.Service(Count, name="Strange_name-1.0")
"""
SERVICES = ("sums", "reverse", "double", "matrix", "count", "strange")

JSON, MSGPACK = {"content-type": "application/json"}, {"content-type": "application/msgpack"}
RAW, NPY = {"content-type": "application/octet-stream"}, {"content-type": "application/x-npy"}


@pytest.fixture(scope="module")
def http(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("formats"), source=SOURCE, services=SERVICES) as server:
        yield server.http


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_json_goes_in_and_comes_out(http):
    answer = http.post("/sums/predict", content=b'{"x": [1, 2.5]}', headers=JSON)
    assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, "application/json", b"3.5")


@pytest.mark.smoke
def test_messagepack_goes_in_and_comes_out(http):
    answer = http.post("/sums/predict", content=msgspec.msgpack.encode({"x": [1, 2.5]}), headers=MSGPACK)
    assert answer.headers["content-type"] == "application/msgpack"
    assert msgspec.msgpack.decode(answer.content) == 3.5


def test_plain_bytes_go_in_and_come_out(http):
    answer = http.post("/reverse/predict", content=b"\x00\xffabc", headers=RAW)
    assert (answer.headers["content-type"], answer.content) == ("application/octet-stream", b"cba\xff\x00")
    assert http.post("/reverse/predict", content=b"", headers=RAW).content == b""


@pytest.mark.smoke
def test_arrays_go_in_and_come_out_as_numpy_files(http):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    answer = http.post("/double/predict", content=npy(array), headers={**NPY, "accept": "application/x-npy"})
    assert answer.headers["content-type"] == "application/x-npy"
    back = np.load(io.BytesIO(answer.content))
    assert (back.dtype, back.tolist()) == (np.float32, (array * 2).tolist())


def test_the_rows_of_a_batch_array_are_the_results(http):
    assert http.post("/matrix/predict", json=1.5).json() == [1.5, 3.0]
    assert http.post("/matrix/batch", json=[1, 2]).json() == {"outcomes": [{"result": [1, 2]}, {"result": [2, 4]}]}


# -- client batches -----------------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_client_batch_with_a_failure_is_207(http):
    answer = http.post("/sums/batch", json=[{"x": [1]}, {"x": ["?"]}, {"y": []}])
    assert answer.status_code == 207
    first, second, third = answer.json()["outcomes"]
    assert first == {"result": 1.0}
    assert (second["error"]["status"], second["error"]["path"]) == (422, "$[...][0]")
    assert third["error"]["status"] == 500, "the stage raised a KeyError for it"


def test_a_client_batch_may_come_in_messagepack_and_leave_in_json_and_the_other_way(http):
    packed = msgspec.msgpack.encode([1, 2])
    answer = http.post("/count/batch", content=packed, headers={**MSGPACK, "accept": "application/json"})
    assert answer.json() == {"outcomes": [{"result": 2}, {"result": 3}]}
    answer = http.post("/count/batch", json=[1], headers={"accept": "application/msgpack"})
    assert msgspec.msgpack.decode(answer.content) == {"outcomes": [{"result": 2}]}


def test_a_client_batch_larger_than_the_queue_and_than_a_batch_is_answered_whole(http):
    answer = http.post("/count/batch", json=list(range(5000)))
    assert answer.status_code == 200
    assert [outcome["result"] for outcome in answer.json()["outcomes"]] == list(range(1, 5001))


def test_a_client_batch_of_a_megabyte_is_split_off_the_loop_and_answered_the_same(http):
    rows = [{"x": [n, 0.25] * 400} for n in range(300)]
    answer = http.post("/sums/batch", json=rows)
    assert [outcome["result"] for outcome in answer.json()["outcomes"]] == [400 * (n + 0.25) for n in range(300)]


# -- several services -----------------------------------------------------------------------------------


def test_with_several_services_a_path_names_the_one_it_means(http):
    assert http.post("/count/predict", json=1).json() == 2
    answer = http.post("/predict", json=1)
    assert answer.status_code == 404
    assert "/count/predict" in answer.json()["detail"]


def test_a_name_is_a_part_of_its_path_as_it_is(http):
    assert http.post("/Strange_name-1.0/predict", json=1).json() == 2
    assert "Strange_name-1.0" in http.get("/health").json()["services"]
    assert "/Strange_name-1.0/predict" in http.get("/openapi.json").json()["paths"]
