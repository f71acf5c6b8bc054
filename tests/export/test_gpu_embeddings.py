"""The encoder in PyTorch gives the vectors of the one in numpy, and serves them; on the CPU where there is no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch
from served import Server

import test_docs

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "gpu_embeddings"
START_LIMIT = 150.0
"""Seconds: a worker imports torch, and runs 64 texts of 256 tokens on the CPU before it is ready."""
RECORDED = json.loads((ROOT / "tests" / "acceptance" / "data" / "minilm_reference.json").read_text())["texts"]


def module(folder: str):
    """The module `model` of an example, of which two have one."""
    spec = spec_from_file_location(f"model_of_{folder}", ROOT / "examples" / folder / "model.py")
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 1e-2)])
def test_its_vectors_are_those_of_the_example_in_numpy_whatever_shares_their_batch(dtype, tolerance):
    numpy_model, torch_model = module("sentence_embeddings"), module("gpu_embeddings")
    random = np.random.default_rng(1)
    texts = [[101, *random.integers(1000, 30_000, n).tolist(), 102] for n in (7, 0, 1, 6, 62, 254)]
    folder = numpy_model.model_folder()
    expected = numpy_model.SentenceModel(folder).encode(texts)
    model = torch_model.SentenceModel(folder, "cpu", dtype)
    assert {each.dtype for each in model.network.parameters()} == {dtype}
    alone = np.concatenate([model.encode([text]).numpy() for text in texts])
    for found in (model.encode(texts).numpy(), alone):
        assert found.dtype == np.float32
        assert np.abs(found - expected).max() < tolerance


@contextmanager
def serving() -> Iterator[Server]:
    env = {} if torch.cuda.is_available() else {"CUDA_VISIBLE_DEVICES": ""}  # the driver may list one all the same
    server = Server(EXAMPLE, "service:service", "--port", "0", env=env)
    try:
        server.wait_for("ready on", START_LIMIT)
        yield server.ready()
        server.stop()
    finally:
        server.hang_up()
        server.destroy()


def test_it_serves_the_published_vectors():
    curl = next(block.text for block in test_docs.blocks(EXAMPLE / "README.md") if block.text.startswith("curl "))
    with serving() as server:
        lone = test_docs.curl(curl, server.http).json()
        answer = server.http.post("/batch", json=[text["text"] for text in RECORDED], timeout=START_LIMIT)
    assert answer.status_code == 200, answer.text
    tolerance = 1e-2 if torch.cuda.is_available() else 1e-5
    for text, outcome in zip(RECORDED, answer.json()["outcomes"], strict=True):
        assert outcome["result"] == pytest.approx(text["vector"], abs=tolerance), text["name"]
    assert lone == pytest.approx(RECORDED[0]["vector"], abs=tolerance)
