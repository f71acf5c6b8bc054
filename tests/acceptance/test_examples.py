"""Every example does what its README says.

`tests/test_docs.py` reads the pages of the documentation, and these tests the READMEs of the examples: each command of
a README is run once.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from PIL import Image

from terminals import run_on_terminal

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
WITH_FRAMEWORKS = {"affairs", "gpu_embeddings", "identifiers"}
"""Run in `tests/export`, with the frameworks that they need."""
ATTACHED = {"external_workers"}
"""Not ready by themselves: somebody has to start a worker."""
ROLLED = {"rolling"}
"""Needs more than itself: what a roll does is in `test_rolling_example.py`."""
BY_ITSELF = {"fetch_and_upload"}
"""Needs a store, which its own program starts and stops."""
SETOSA = {"sepal_length": 5.1, "sepal_width": 3.5, "petal_length": 1.4, "petal_width": 0.2}
PARCEL = {"kilograms": 2, "sides": [{"centimetres": side} for side in (30, 20, 10)]}

two_cores = pytest.mark.skipif(
    not {0, 1} <= os.sched_getaffinity(0), reason="the arithmetic example pins its workers to cores 0 and 1"
)
MARKS = {"arithmetic": two_cores, "pydantic_service": pytest.mark.smoke}
FOLDERS = [pytest.param(name, marks=MARKS.get(name, ())) for name in TARGETS]


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
    assert folders == set(TARGETS) | WITH_FRAMEWORKS | ATTACHED | ROLLED | BY_ITSELF


def test_an_example_is_short():
    for folder in (*TARGETS, *WITH_FRAMEWORKS, *ATTACHED, *ROLLED, *BY_ITSELF):
        for program in (EXAMPLES / folder).glob("*.py"):
            if program.name != "model.py":  # the network itself: a model is as long as it is
                assert len(program.read_text().splitlines()) < 60, program


def test_the_worker_in_node_is_short_and_needs_nothing_but_node():
    text = (EXAMPLES / "node_worker" / "worker.mjs").read_text()
    assert len(text.splitlines()) < 250
    assert set(re.findall(r'^import .* from "(.+)";$', text, re.MULTILINE)) == {"node:net"}
    assert "require(" not in text


def test_the_front_in_node_is_of_small_files_needs_express_and_the_client_alone_and_names_no_registry():
    folder = EXAMPLES / "node_front"
    for path in (folder / "src").glob("*.ts"):
        assert len(path.read_text().splitlines()) < 200, path
    assert set(json.loads((folder / "package.json").read_text())["dependencies"]) == {"express", "penstock-client"}
    lockfile = (folder / "package-lock.json").read_text()
    assert not re.search(r'"resolved": "(?!\.\./\.\./clients/typescript")', lockfile)


@pytest.fixture(scope="module")
def served(serving, request):
    """A client of the example that the test names, which is started once for all tests of it."""
    with serving(request.param, TARGETS[request.param]) as client:
        yield client


def of_example(*folders: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("served", folders, indirect=True)


@of_example(*FOLDERS)
def test_the_calls_in_a_readme_are_answered(served, request, curl, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(picture(300, 200, "JPEG"))
    told = blocks(request.node.callspec.params["served"])
    calls = 0
    for (language, text), (next_language, next_text) in zip(told, [*told[1:], ("", "")], strict=True):
        if language == "sh" and text.startswith("curl "):
            answer = curl(served, text, tmp_path)
            assert answer.status_code == 200, (text, answer.text)
            calls += 1
            if next_language == "json":
                assert answer.json() == json.loads(next_text)
    assert calls


# The first stage of the arithmetic example has no examples to check with.  Neither has the burst, whose warm-up would
# take longer than the burst.
# By day two whose models load at once.
@pytest.mark.parametrize(
    "folder",
    [
        "image_bytes",
        "pydantic_service",
        *(
            pytest.param(name, marks=pytest.mark.night)
            for name in ("job_queue", "sentence_embeddings", "sklearn_pipeline", "two_heavy_stages")
        ),
    ],
)
def test_check_finds_nothing_wrong(folder, running):
    with running(folder, str(Path(sys.executable).parent / "penstock"), "check", TARGETS[folder]) as program:
        assert program.end(limit=50) == 0, program.output


@two_cores
def test_the_arithmetic_program_holds_its_assertions_and_leaves_nothing_behind(running):
    with running("arithmetic", sys.executable, "main.py") as program:
        assert program.end(limit=50) == 0, program.output
        assert program.output == "ok\n"


@two_cores
@of_example("arithmetic")
def test_arithmetic_answers_each_item_of_a_request_for_itself(served):
    answer = served.post("/batch", json=[1, "two", 3])
    assert answer.status_code == 207
    first, second, third = answer.json()["outcomes"]
    assert (first, third) == ({"result": 5.0}, {"result": 9.0})
    assert second["error"]["status"] == 422


def test_what_is_fetched_and_uploaded_fails_while_the_store_is_down_and_comes_when_it_is_back(running):
    (_, command), (_, shown) = blocks("fetch_and_upload")[:2]
    assert command == "python main.py"
    with running("fetch_and_upload", sys.executable, "main.py") as program:
        assert program.end(limit=50) == 0, program.output
        assert program.output.splitlines() == shown.splitlines()


@pytest.mark.night
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


@of_example("sklearn_pipeline")
def test_the_iris_pipeline_classifies_and_refuses_what_is_no_flower(served):
    answer = served.post("/predict", json=SETOSA).json()
    assert answer["name"] == "setosa"
    assert 0.9 < answer["probability"] <= 1
    refused = served.post("/predict", json={**SETOSA, "petal_width": -1})
    assert refused.status_code == 422
    assert refused.json()["path"] == "$.petal_width"
    outcomes = served.post("/batch", json=[SETOSA, {}, SETOSA]).json()["outcomes"]
    assert ["result" in outcome for outcome in outcomes] == [True, False, True]


RAW = {"content-type": "application/octet-stream"}


@of_example("image_bytes")
def test_images_go_in_and_thumbnails_come_out_as_plain_bytes(served):
    answer = served.post("/predict", content=picture(640, 320), headers=RAW)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/octet-stream"
    with Image.open(io.BytesIO(answer.content)) as thumbnail:
        assert (thumbnail.format, thumbnail.size) == ("PNG", (128, 64))
        assert thumbnail.getpixel((5, 5)) == (200, 30, 30)


@of_example("image_bytes")
def test_what_is_no_whole_image_is_the_callers_fault(served):
    for file in (b"", b"no image", picture(64, 64)[:-40], picture(64, 64).replace(b"IDAT", b"IDAX")):
        answer = served.post("/predict", content=file, headers=RAW)
        assert answer.status_code == 422, (file, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"


@of_example("pydantic_service")
def test_pydantic_models_hold_at_the_door(served):
    assert served.post("/predict", json=PARCEL).json() == {"cents": 300, "pays_for": "weight"}
    assert served.post("/predict", json={**PARCEL, "kilograms": 0.1, "speed": "fast"}).json() == {
        "cents": 480,
        "pays_for": "volume",
    }
    refused = served.post("/predict", json={**PARCEL, "sides": [*PARCEL["sides"][:2], {"centimetres": -1}]})
    assert refused.status_code == 422
    assert refused.json()["path"] == "$.sides[2].centimetres"


@pytest.mark.parametrize(
    ("visible", "driver", "found"),
    [
        (None, 2, [0, 1]),
        (None, 0, None),
        ("3,5", 8, [0, 1]),
        ("MIG-7c1e7d2a,MIG-f3a5", 1, [0, 1]),
        ("", 2, None),
        ("-1", 2, None),
        (" ", 2, None),
        ("3,-1,5", 8, [0]),
    ],
)
def test_the_service_on_gpus_counts_those_it_sees_without_torch(monkeypatch, tmp_path, visible, driver, found):
    monkeypatch.syspath_prepend(EXAMPLES / "gpu_embeddings")
    monkeypatch.delitem(sys.modules, "host", raising=False)
    import host  # no torch is in this environment

    sys.modules.pop("host")
    monkeypatch.setattr(host, "DRIVER", tmp_path)
    for number in range(driver):
        (tmp_path / f"0000:{number}0:00.0").mkdir()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert host.gpus() == found


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
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environ = {**kept, "TERM": "xterm-256color", "COLUMNS": "100", "PYTHONUTF8": "1", **environ}
    return run_on_terminal(command, cwd=folder, env=environ, timeout=30)


@pytest.mark.night
def test_the_burst_fails_where_the_service_does_otherwise(tmp_path):
    for file in (EXAMPLES / "burst").iterdir():
        if file.is_file():
            (tmp_path / file.name).write_text(file.read_text().replace("max_in_flight=8", "max_in_flight=9"))
    done = subprocess.run(
        [sys.executable, "burst.py"], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].startswith("0 rejected, 4 ok, 5 errors; ")


FOLLOWED = {
    "demo": [
        r"/readyz: square is starting: square waits for a remote worker, \d s",
        r"starts the worker in Python, pid (\d+)",
        r"starts the worker in {second}, pid (\d+)",
        r"/health: python [\d.]+, pid {0}, \w+; {language}, pid {1}, \w+",
        r"kills \(-9\) the worker in Python, pid {0}, amid a batch",
        r"(?:\d|no) of its items were run again by another worker",
        r"/health: {language}, pid {1}, \w+",
        r"starts the worker in Python, pid (\d+)",
        r"/health: {language}, pid {1}, \w+; python [\d.]+, pid {2}, \w+",
        r"asks the worker in {second}, pid {1}, to leave",
        r"it has answered what it held, and ended with status 0",
    ],
    "server": [
        r"service 'square' accepts remote workers at /.+/workers\.sock",
        r"worker 0 of stage 'square' attached \(pid {0}, uid \d+, python [\d.]+\)",
        r"worker 0 of stage 'square' is ready \(pid {0}\)",
        r"worker 1 of stage 'square' attached \(pid {1}, uid \d+, {language}\)",
        r"worker 1 of stage 'square' is ready \(pid {1}\)",
        r"worker 0 of stage 'square' ended: it closed its connection",
        r"worker 0 of stage 'square' attached \(pid {2}, uid \d+, python [\d.]+\)",
        r"worker 0 of stage 'square' is ready \(pid {2}\)",
        r"worker 1 of stage 'square' is detaching \(pid {1}\)",
        r"worker 1 of stage 'square' detached",
        r"worker 0 of stage 'square' is detaching \(pid {2}\)",
        r"worker 0 of stage 'square' detached",
    ],
    "callers": [r"\d+ answers are right so far, 0 are not"] * 4 + [r"all \d+ answers were right"],
}
"""What each tells in the demonstration of workers from outside.  Which of two tells first may be chance."""


def lines_of(output, who):
    return re.findall(rf"^ *[\d.]+ s  {who} +(.+)$", output, re.MULTILINE)


def demo_of_workers(running, tmp_path, **environ):
    """What the demonstration writes; it must end well, and leave nothing behind."""
    env = {"TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", **environ}
    before = set((EXAMPLES / "external_workers").iterdir())
    with running("external_workers", sys.executable, "demo.py", env=env) as program:
        assert program.end(limit=50) == 0, program.output
    assert list(tmp_path.iterdir()) == []
    assert set((EXAMPLES / "external_workers").iterdir()) == before
    assert "\x1b" not in program.output
    return program.output


def assert_followed(output, second, language):
    pids = []
    for who, patterns in FOLLOWED.items():
        lines = [line for line in lines_of(output, who) if not line.startswith("node is not here")]
        for pattern, line in zip(patterns, lines, strict=True):
            told = re.fullmatch(pattern.format(*pids, second=second, language=language), line)
            assert told, (pattern, line)
            pids += told.groups()


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not here")
def test_workers_in_python_and_node_attach_and_die_and_leave_and_every_answer_is_right(running, tmp_path):
    assert_followed(demo_of_workers(running, tmp_path), "Node", "node")


@pytest.mark.night
def test_where_node_is_not_the_demonstration_says_so_and_goes_on_with_python(running, tmp_path):
    output = demo_of_workers(running, tmp_path, PATH=str(Path(sys.executable).parent))
    assert "node is not here: a second worker in Python takes the place of the one in Node" in output
    assert_followed(output, "Python", r"python [\d.]+")


def test_the_demonstration_of_workers_has_colours_on_a_terminal_unless_they_are_not_wanted():
    command = [sys.executable, "-c", "from telling import tell; tell('demo', 'begins')"]
    assert "\x1b[1mdemo " in on_a_terminal(command, EXAMPLES / "external_workers", {})
    assert "\x1b" not in on_a_terminal(command, EXAMPLES / "external_workers", {"NO_COLOR": "1"})


@pytest.mark.night
def test_the_demonstration_of_workers_fails_where_an_answer_is_wrong(tmp_path):
    for folder in ("external_workers", "node_worker"):
        shutil.copytree(EXAMPLES / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    stage = tmp_path / "external_workers" / "squares.py"
    stage.write_text(stage.read_text().replace("number * number", "number * number + (number % 10 == 9)"))
    done = subprocess.run(
        [sys.executable, "demo.py"], cwd=stage.parent, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 1, done.stderr
    assert re.search(r"^\d*9: 200, \d*2\b", lines_of(done.stdout, "callers")[-1]), done.stdout


def test_a_worker_that_attaches_as_its_readme_says_answers_as_it_says(running, curl, tmp_path):
    told = blocks("external_workers")
    serve, python, node, call, answer = (text for _, text in told)
    path = str(tmp_path / "workers.sock")
    penstock = [sys.executable, "-m", *shlex.split(serve), "--port", "0", "--remote-worker-socket", path]
    commands = [[sys.executable, "-m", *shlex.split(python.replace("workers.sock", path))]]
    if shutil.which("node"):
        commands.append(shlex.split(node.replace("workers.sock", path)))
    with running("external_workers", *penstock) as server:
        url = server.wait_for(r"http://127\.0\.0\.1:\d+").group()
        with httpx.Client(base_url=url, timeout=50) as client:
            for number, command in enumerate(commands):
                with running("external_workers", *command) as worker:
                    server.wait_for(rf"(is ready \(pid \d+\)(.|\n)*){{{number + 1}}}")
                    assert curl(client, call, tmp_path).json() == json.loads(answer)
                    assert worker.end(signal.SIGINT) == 0, worker.output
        assert server.end(signal.SIGTERM) == 0, server.output


@pytest.mark.night
def test_check_finds_nothing_wrong_with_the_service_without_a_model(running):
    with running("external_workers", sys.executable, "-m", "penstock", "check", "service:service") as program:
        assert program.end(limit=50) == 0, program.output
