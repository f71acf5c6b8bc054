"""Every example does what its README says."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

EXAMPLES = Path(__file__).parents[2] / "examples"
TARGETS = {
    "arithmetic": "main:service",
    "burst": "service:service",
    "image_bytes": "service:service",
    "job_queue": "service:service",
    "pydantic_service": "service:service",
    "sentence_embeddings": "service:service",
    "sklearn_pipeline": "service:service",
    "two_heavy_stages": "main:service",
}
TRAINED = {"affairs"}
"""Run in `tests/export`, with the frameworks that they need."""
SETOSA = {"sepal_length": 5.1, "sepal_width": 3.5, "petal_length": 1.4, "petal_width": 0.2}
PARCEL = {"kilograms": 2, "sides": [{"centimetres": side} for side in (30, 20, 10)]}

two_cores = pytest.mark.skipif(
    not {0, 1} <= os.sched_getaffinity(0), reason="the arithmetic example pins its workers to cores 0 and 1"
)
FOLDERS = [pytest.param(name, marks=two_cores if name == "arithmetic" else ()) for name in TARGETS]


def blocks(folder: str) -> list[tuple[str, str]]:
    """The fenced blocks of an example's README, as (language, text)."""
    text = (EXAMPLES / folder / "README.md").read_text()
    return re.findall(r"^```(\w+)\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)


def picture(width: int, height: int, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(out, kind)
    return out.getvalue()


def test_every_example_is_tested_here():
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders == set(TARGETS) | TRAINED


@pytest.mark.parametrize("folder", [*TARGETS, *TRAINED])
def test_an_example_is_short_and_has_a_readme(folder):
    assert (EXAMPLES / folder / "README.md").exists()
    for program in (EXAMPLES / folder).glob("*.py"):
        if program.name != "model.py":  # the network itself: a model is as long as it is
            assert len(program.read_text().splitlines()) < 60, program


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_calls_in_a_readme_are_answered(folder, serving, curl, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(picture(300, 200, "JPEG"))
    told = blocks(folder)
    calls = 0
    with serving(folder, TARGETS[folder]) as client:
        for (language, text), (next_language, next_text) in zip(told, [*told[1:], ("", "")], strict=True):
            if language == "sh" and text.startswith("curl "):
                answer = curl(client, text, tmp_path)
                assert answer.status_code == 200, (text, answer.text)
                calls += 1
                if next_language == "json":
                    assert answer.json() == json.loads(next_text)
    assert calls


# The first stage of the arithmetic example has no examples to check with.  Neither has the burst, whose warm-up would
# take longer than the burst.
@pytest.mark.parametrize("folder", [name for name in TARGETS if name not in ("arithmetic", "burst")])
def test_check_finds_nothing_wrong(folder, running):
    with running(folder, str(Path(sys.executable).parent / "penstock"), "check", TARGETS[folder]) as program:
        assert program.end(limit=50) == 0, program.output


@two_cores
def test_the_arithmetic_program_holds_its_assertions_and_leaves_nothing_behind(running):
    with running("arithmetic", sys.executable, "main.py") as program:
        assert program.end(limit=50) == 0, program.output
        assert program.output == "ok\n"


@two_cores
def test_arithmetic_answers_each_item_of_a_request_for_itself(serving):
    with serving("arithmetic", "main:service") as client:
        assert client.post("/predict", content="3").json() == 9.0
        answer = client.post("/batch", json=[1, "two", 3])
        assert answer.status_code == 207
        first, second, third = answer.json()["outcomes"]
        assert (first, third) == ({"result": 5.0}, {"result": 9.0})
        assert second["error"]["status"] == 422


def test_two_heavy_stages_give_the_intervals_in_the_order_of_the_seeds(running):
    with running("two_heavy_stages", sys.executable, "main.py") as program:
        assert program.end(limit=50) == 0, program.output
    draws, expected = 20, []
    for seed in range(20):
        steps = random.Random(seed)
        walk = [steps.gauss(0.1, 1.0) for _ in range(20_000)]
        draw = random.Random(0)
        means = sorted(sum(draw.choices(walk, k=len(walk))) / len(walk) for _ in range(draws))
        expected.append(f"{means[1]:.3f} to {means[-2]:.3f}")
    assert program.output.splitlines() == expected


def test_the_iris_pipeline_classifies_and_refuses_what_is_no_flower(serving):
    with serving("sklearn_pipeline", "service:service") as client:
        answer = client.post("/predict", json=SETOSA).json()
        assert answer["name"] == "setosa"
        assert 0.9 < answer["probability"] <= 1
        refused = client.post("/predict", json={**SETOSA, "petal_width": -1})
        assert refused.status_code == 422
        assert refused.json()["path"] == "$.petal_width"
        outcomes = client.post("/batch", json=[SETOSA, {}, SETOSA]).json()["outcomes"]
        assert ["result" in outcome for outcome in outcomes] == [True, False, True]


def test_images_go_in_and_thumbnails_come_out_as_plain_bytes(serving):
    raw = {"content-type": "application/octet-stream"}
    with serving("image_bytes", "service:service") as client:
        answer = client.post("/predict", content=picture(640, 320), headers=raw)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/octet-stream"
        with Image.open(io.BytesIO(answer.content)) as thumbnail:
            assert (thumbnail.format, thumbnail.size) == ("PNG", (128, 64))
            assert thumbnail.getpixel((5, 5)) == (200, 30, 30)


@pytest.mark.parametrize(
    "file", [b"", b"no image", picture(64, 64)[:-40], picture(64, 64).replace(b"IDAT", b"IDAX")], ids=len
)
def test_what_is_no_whole_image_is_the_callers_fault(file, image_server):
    answer = image_server.post("/predict", content=file, headers={"content-type": "application/octet-stream"})
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.fixture(scope="module")
def image_server(serving):
    with serving("image_bytes", "service:service") as client:
        yield client


def test_pydantic_models_hold_at_the_door_over_a_unix_socket(serving, tmp_path):
    with serving("pydantic_service", "service:service", uds=tmp_path / "parcels.sock") as client:
        assert client.post("/predict", json=PARCEL).json() == {"cents": 300, "pays_for": "weight"}
        assert client.post("/predict", json={**PARCEL, "kilograms": 0.1, "speed": "fast"}).json() == {
            "cents": 480,
            "pays_for": "volume",
        }
        refused = client.post("/predict", json={**PARCEL, "sides": [*PARCEL["sides"][:2], {"centimetres": -1}]})
        assert refused.status_code == 422
        assert refused.json()["path"] == "$.sides[2].centimetres"
    assert not (tmp_path / "parcels.sock").exists()


BURST = "1 rejected, 4 ok, 4 errors; health: 2 busy, 2 ready"


def test_the_burst_ends_as_it_must_under_each_server_and_leaves_nothing_behind(running):
    with running("burst", sys.executable, "burst.py") as program:
        assert program.end(limit=50) == 0, program.output
    lines = program.output.splitlines()
    assert [line for line in lines if "rejected" in line] == [BURST] * 2
    assert lines[-1] == BURST
    assert not any("\x1b" in line for line in lines)
    for side, what, number in (("client", ": 200, ", 16), ("client", ": 500, ", 8), ("server", "of requests", 4)):
        assert sum(side in line and what in line for line in lines) == number


def test_the_burst_is_drawn_in_lanes_on_a_terminal_and_in_colours_unless_they_are_not_wanted():
    drawn = {}
    for wanted in ({}, {"NO_COLOR": "1"}):
        code = "from timelines import *; draw('t', [Span('client', 'request 1', 1.0, 2.0, 'ok', 'green')])"
        drawn[len(wanted)] = on_a_terminal([sys.executable, "-c", code], EXAMPLES / "burst", wanted)
    assert "request 1" + " " * 17 + "━" * 10 + " ok" in drawn[1]
    assert "━" * 10 in drawn[0]
    assert "\x1b[32m" in drawn[0]
    assert "\x1b[32m" not in drawn[1]


def on_a_terminal(command: list[str], folder: Path, environ: dict[str, str]) -> str:
    """What a command writes to a terminal."""
    reader, terminal = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environ = {**kept, "TERM": "xterm-256color", "COLUMNS": "100", "PYTHONUTF8": "1", **environ}
    subprocess.run(command, cwd=folder, env=environ, stdout=terminal, check=True, timeout=30)
    os.close(terminal)
    with contextlib.suppress(OSError), os.fdopen(reader, "rb", buffering=0) as written:
        return written.read(65536).decode()
    raise AssertionError("nothing was written")


def test_the_burst_fails_where_the_service_does_otherwise(tmp_path):
    for file in (EXAMPLES / "burst").iterdir():
        if file.is_file():
            (tmp_path / file.name).write_text(file.read_text().replace("max_queued=8", "max_queued=9"))
    done = subprocess.run(
        [sys.executable, "burst.py"], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].startswith("0 rejected, 4 ok, 5 errors; ")
