"""The flagship example gives the vectors that the published model gives, however it is asked."""

from __future__ import annotations

import io
import math
import shlex
import signal
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from proxies import free_port

FOLDER = "sentence_embeddings"
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def example():
    """The example's modules, imported from its folder and forgotten afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "examples" / FOLDER)
        for name in ("model", "service"):
            patch.delitem(sys.modules, name, raising=False)
        import service

        yield service
        for name in ("model", "service"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def tokens(example, reference):
    """The token ids of every recorded text, by name."""
    stage = example.Tokenize()
    stage.setup()
    return dict(zip(reference, stage.predict([text for text, _ in reference.values()]), strict=True))


@pytest.fixture(scope="module")
def server(serving):
    with serving(FOLDER, "service:service") as client:
        yield client


def furthest(vector, expected) -> float:
    return float(np.abs(np.asarray(vector) - np.asarray(expected)).max())


def test_texts_are_cut_at_256_tokens_and_not_at_the_128_of_the_file(tokens):
    assert {name: len(tokens[name]) for name in ("126 words", "127 words", "254 words", "255 words", "400 words")} == {
        "126 words": 128,
        "127 words": 129,
        "254 words": 256,
        "255 words": 256,
        "400 words": 256,
    }
    assert tokens["empty"] == tokens["blank"] == [101, 102]


def test_the_activation_is_the_exact_gelu(example):
    x = np.linspace(-12, 12, 24_001, dtype=np.float32)
    exact = [v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in x.tolist()]
    rows = x.reshape(-1, 1).copy()
    sys.modules["model"].gelu(rows)
    assert furthest(rows[:, 0], exact) < 1e-6


def test_the_example_of_the_second_stage_is_that_of_the_first_tokenized(example):
    stage = example.Tokenize()
    stage.setup()
    assert stage.predict(example.Tokenize.examples) == example.Embed.examples


@pytest.mark.smoke
def test_single_requests_are_answered_with_the_recorded_vectors(reference, server):
    for name, (text, vector) in reference.items():
        answer = server.post("/predict", json=text)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()) == 384
        assert furthest(answer.json(), vector) < TOLERANCE, name


def test_one_request_with_all_texts_is_answered_with_the_recorded_vectors(reference, server):
    answer = server.post("/batch", json=[text for text, _ in reference.values()])
    assert answer.status_code == 200, answer.text
    vectors = [outcome["result"] for outcome in answer.json()["outcomes"]]
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)
    for (name, (_, vector)), outcome in zip(reference.items(), answer.json()["outcomes"], strict=True):
        assert furthest(outcome["result"], vector) < TOLERANCE, name


def test_a_vector_can_be_had_as_a_numpy_file(reference, server):
    text, vector = reference["short"]
    answer = server.post("/predict", json=text, headers={"accept": "application/x-npy"})
    assert answer.headers["content-type"] == "application/x-npy"
    array = np.load(io.BytesIO(answer.content), allow_pickle=False)
    assert array.dtype == np.float32
    assert furthest(array, vector) < TOLERANCE


def test_what_is_no_text_is_refused(server):
    for body in (b"3", b'["a list"]', b"null", b"no json", b'"half', b'"\xff"'):
        assert server.post("/predict", content=body).status_code == 422, body


def test_the_api_document_shows_the_text_that_the_server_warmed_up_with(example, server):
    request = server.get("/openapi.json").json()["paths"]["/predict"]["post"]["requestBody"]
    assert example.EXAMPLE in str(request["content"]["application/json"])


@pytest.mark.night
def test_the_demo_prints_a_curl_line_that_works_and_ends_by_ctrl_c(running, curl, reference, tmp_path):
    port = free_port()  # the demo is told its port, so a free one is looked for first
    with running(FOLDER, sys.executable, "demo.py", env={"PENSTOCK_PORT": str(port)}) as program:
        line = program.wait_for(r"curl .*").group()
        assert f"http://127.0.0.1:{port}/predict" in shlex.split(line)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            answer = curl(client, line, tmp_path)
        assert furthest(answer.json(), reference["short"][1]) < TOLERANCE
        assert program.end(signal.SIGINT) == 0, program.output
