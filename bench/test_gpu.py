"""The driver of the parts for a GPU: whatever becomes of one part, it is told, the next runs, and nothing is left."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from callers import load, request_bytes
from findings import MOST_FINDINGS, Figure, Garbled, PartReport, Report
from part import Part
from parts import speed
from serving import Server

GPU = Path(__file__).parent / "gpu"

PLANTED = """
import os, signal, subprocess, sys, time
import part as parts

kind = sys.argv[1]
told = parts.Part(int(os.environ["PART_FINDINGS"]), float(os.environ["PART_SECONDS"]), None, "cpu")
told.figure("seen", "s", [1, 2, 3])
told.check("it began", True)
if kind == "raises":
    raise ValueError("a fault of the part")
if kind == "hangs":
    time.sleep(1000)
if kind == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
if kind == "prints":
    while True:
        print("x" * 1000)
if kind == "garbles":
    os.write(int(os.environ["PART_FINDINGS"]), b"x" * 200_000 + b"\\n")
if kind == "fails":
    told.check("the claim", False, "it is not so")
if kind == "stands in":
    import encoders
    told.note(encoders.kind_here())
    told.note(encoders.WHY_NO_TORCH)
if kind == "refuses":
    told.not_run("there is no such device")
    sys.exit()
if kind == "shut":
    # No file can take the place of a folder that has something in it.
    report = os.path.join(os.environ["OUT"], "gpu-report.json")
    os.unlink(report)
    os.makedirs(os.path.join(report, "something"))
if kind == "serves":
    with open("server.log", "w") as log:
        log.write("old words" + "x" * 100_000 + "the last words of a server")
if kind == "looks":
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTHONDONTWRITEBYTECODE", "PENSTOCK_LOG_LEVEL")
    told.check("no setting of the user's is left", not any(name in os.environ for name in names))
    told.check("bytecode is written aside", "penstock-gpu-" in str(sys.pycache_prefix))
if kind in ("leaves", "leaves and hangs"):
    # In a session of its own, without a parent, deaf to SIGTERM, with the output open.
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open("left", "w").close()
        time.sleep(1000)
    while not os.path.exists("left"):
        time.sleep(0.01)
    if kind == "leaves and hangs":
        time.sleep(1000)
told.done()
"""
DRIVER = """
import sys
sys.path.insert(0, {gpu!r})
import run

names = {names!r}
seconds = {seconds!r}
parts = [run.Part(n, seconds, seconds, (sys.executable, {planted!r}, n)) for n in names]
sys.exit(run.main(sys.argv[1:], parts))
"""


class Run:
    """A run of planted parts; every process of it has a mark in its environment."""

    def __init__(
        self, folder: Path, *names: str, seconds: float = 60.0, out: Path | None = None, python_path: Path | None = None
    ) -> None:
        self.out = out or folder / "out"
        self.mark = uuid.uuid4().hex
        planted, driver = folder / "planted.py", folder / f"driver-{self.mark}.py"
        planted.write_text(PLANTED)
        driver.write_text(DRIVER.format(gpu=str(GPU), names=names, seconds=seconds, planted=str(planted)))
        self.scratch = folder / f"tmp-{self.mark}"
        self.scratch.mkdir()
        env = {**os.environ, "OUT": str(self.out), "MARK": self.mark, "TMPDIR": str(self.scratch)}
        env |= {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PENSTOCK_LOG_LEVEL": "debug"}
        if python_path is not None:
            env["PYTHONPATH"] = str(python_path)
        self.process = subprocess.Popen(
            [sys.executable, driver, "--installed"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def ended(self) -> tuple[int, str]:
        """The exit status and all that was printed; nothing of the run is left."""
        printed, told = self.process.communicate(timeout=120)
        assert not self.left(), told
        assert not list(self.scratch.iterdir())
        return self.process.returncode, printed + told

    def left(self) -> list[str]:
        """Processes of the run that live."""
        mark = f"MARK={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().decode())
            except OSError:
                continue
        return found

    @property
    def report(self) -> dict[str, Any]:
        return dict(json.loads((self.out / "gpu-report.json").read_text()))

    @property
    def verdicts(self) -> dict[str, tuple[str, str]]:
        return {part["name"]: (part["verdict"], part["why"]) for part in self.report["parts"]}


def test_whatever_becomes_of_a_part_is_told_and_the_next_one_runs(tmp_path: Path) -> None:
    run = Run(tmp_path, "raises", "dies", "leaves", "garbles", "fails", "refuses", "looks", "serves", "well")
    status, _ = run.ended()
    assert status == 1
    verdicts = run.verdicts
    assert verdicts.pop("raises") == ("failed", "its process ended with status 1: ValueError: a fault of the part")
    assert verdicts.pop("dies") == ("failed", "its process was killed by SIGKILL")
    assert verdicts.pop("garbles")[0] == "failed"
    assert verdicts.pop("fails") == ("failed", "not met: the claim")
    assert verdicts.pop("refuses") == ("not run", "there is no such device")
    assert verdicts.pop("looks") == ("ok", "3 checks passed, 1 figures")
    assert verdicts == dict.fromkeys(("leaves", "serves", "well"), ("ok", "1 checks passed, 1 figures"))
    assert {path.name for path in run.out.iterdir()} == {"gpu-report.json", "gpu-report.md", "gpu-report.log"}
    figure = {"name": "seen", "unit": "s", "min": 1.0, "median": 2.0, "max": 3.0, "rounds": 3}
    assert all(part["figures"] == [figure] for part in run.report["parts"])
    log = (run.out / "gpu-report.log").read_text()
    assert "ValueError: a fault of the part" in log
    assert "the last words of a server" in log
    assert "old words" not in log


@pytest.mark.parametrize("kind", ["hangs", "prints"])
def test_a_part_that_does_not_end_has_told_what_it_found_until_its_time_was_over(tmp_path: Path, kind: str) -> None:
    run = Run(tmp_path, kind, seconds=1.0)
    assert run.ended()[0] == 1
    assert run.verdicts[kind] == ("failed", "it was ended after its 1 s; what it had found until then is here")
    assert len(run.report["parts"][0]["figures"]) == 1
    log = run.out / "gpu-report.log"
    assert log.stat().st_size < 5_000_000
    assert (b"bytes more were dropped" in log.read_bytes()) == (kind == "prints")


BROKEN = {
    "raise ImportError('libcudart.so.13: cannot open shared object file')": "ImportError: libcudart.so.13: cannot open",
    "": "AttributeError: module 'torch' has no attribute 'cuda'",
}


@pytest.mark.parametrize(("source", "words"), BROKEN.items())
def test_parts_stand_in_for_a_pytorch_that_cannot_be_used_and_the_report_says_why(
    tmp_path: Path, source: str, words: str
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text(source)
    run = Run(tmp_path, "stands in", python_path=tmp_path / "broken")
    status, printed = run.ended()
    assert status == 0
    assert f"no GPU: PyTorch cannot be used: {words}" in printed
    kind, why = run.report["parts"][0]["notes"]
    assert "a stand-in" in kind
    assert words in why
    assert run.report["device"] is None
    assert words in run.report["versions"]["gpu"]


@pytest.mark.parametrize(
    ("source", "device", "words"),
    [
        ("version.cuda = None", None, "PyTorch is built without CUDA"),
        ("", None, "PyTorch finds none"),
        (
            "cuda.is_available = lambda: bool(warnings.warn('CUDA initialization: The driver is too old'))",
            None,
            "PyTorch finds none: CUDA initialization: The driver is too old",
        ),
        ("cuda.is_available = lambda: True", "Card", ""),
    ],
)
def test_the_machine_says_which_gpu_there_is_or_why_there_is_none(
    tmp_path: Path, source: str, device: str | None, words: str
) -> None:
    head = """
import warnings
from types import SimpleNamespace as Has
version = Has(cuda="13.0")
cuda = Has(is_available=lambda: False, device_count=lambda: 1)
cuda.get_device_properties = lambda n: Has(name="Card", total_memory=1, uuid="u")
"""
    (tmp_path / "torch.py").write_text(head + source)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, GPU / "machine.py"], env=env, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert (answer["device"] and answer["device"]["name"], answer["no_gpu"]) == (device, words)
    assert answer["no_torch"] == ""


def test_parts_find_what_was_on_the_path_behind_the_wheels(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, run\n"
        "run.install = lambda *_: run.Installed('compiled', '')\n"
        "print(run._prepare(pathlib.Path('wheels'), pathlib.Path(sys.argv[1]))[0]['PYTHONPATH'])"
    )
    env = {**os.environ, "PYTHONPATH": "/of/the/machine"}
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], env=env, cwd=GPU, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().split(os.pathsep)[-2:] == [str(tmp_path / "site"), "/of/the/machine"]


def test_two_runs_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    out = tmp_path / "out"
    runs = [Run(tmp_path, "leaves", "well", out=out) for _ in range(2)]
    for run in runs:
        status, printed = run.ended()
        assert (status, printed.count(" ok ")) == (0, 2)
    assert {path.name for path in out.iterdir()} == {"gpu-report.json", "gpu-report.md", "gpu-report.log"}


def test_a_run_goes_on_though_its_report_cannot_be_written(tmp_path: Path) -> None:
    run = Run(tmp_path, "well", "shut", "well")
    status, printed = run.ended()
    assert status == 1
    assert "run.py: the report cannot be written: " in printed
    assert printed.count("well     ok ") == 2


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_run_leaves_its_report_and_no_process(tmp_path: Path, number: int, status: int) -> None:
    run = Run(tmp_path, "well", "hangs", "later")
    deadline = time.monotonic() + 60
    while "hangs" not in " ".join(run.left()) and time.monotonic() < deadline:
        time.sleep(0.02)
    run.process.send_signal(number)
    assert run.ended()[0] == status
    assert run.verdicts["well"][0] == "ok"
    assert run.verdicts["hangs"] == ("failed", "it was interrupted; what it had found until then is here")
    assert run.verdicts["later"] == ("not run", "it was not reached")


def test_a_killed_driver_takes_its_part_and_what_that_has_left_with_it(tmp_path: Path) -> None:
    run = Run(tmp_path, "leaves and hangs")
    deadline = time.monotonic() + 60
    while not list(run.scratch.rglob("left")) and time.monotonic() < deadline:
        time.sleep(0.02)
    run.process.kill()
    run.process.communicate()
    while run.left() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not run.left()


@pytest.mark.parametrize(
    ("arguments", "out", "words"),
    [
        (["--only", "speed,sped"], "out", "no part is called 'sped'; the parts are speed, overlap, large"),
        (["--only", ","], "out", "--only names no part"),
        (["--wheels", "nowhere"], "out", "nowhere"),
        (["--speed"], "out", "unrecognized arguments: --speed; --help says how it is called"),
        (["--installed"], "file/out", "cannot be written"),
    ],
)
def test_a_wrong_call_is_a_sentence_before_anything_runs(
    tmp_path: Path, arguments: list[str], out: str, words: str
) -> None:
    (tmp_path / "file").touch()
    env = {**os.environ, "OUT": str(tmp_path / out)}
    command = [sys.executable, GPU / "run.py", *arguments]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("run.py: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True


def test_the_rest_is_measured_where_a_server_does_not_come_up(tmp_path: Path) -> None:
    read, write = os.pipe()
    part = Part(write, 60.0, tmp_path, "cpu")
    for name in ("LitServe", speed.HTTP):
        with Server([sys.executable, "-c", "print('no semaphores'); exit(3)"], tmp_path / "log", 1) as server:
            assert not speed._came_up(part, "MiniLM", name, server)
    os.close(write)
    words = "it ended with status 3: no semaphores"
    with os.fdopen(read) as found:
        assert [json.loads(line) for line in found] == [
            {"note": f"LitServe was not run: {words}"},
            {"check": f"MiniLM, {speed.HTTP}: it starts", "ok": False, "words": words},
        ]


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        ("sys.version_info = (3, 9, 18)", "use CPython 3.11, 3.12 or 3.13"),
        ("tempfile.TemporaryFile = lambda dir: open('/dev/full', 'wb')", "No space left on device; set OUT"),
        ("resource.getrlimit = lambda kind: (256, 256)", "256 are allowed: raise `ulimit -Hn`"),
        ("os.statvfs = lambda path: types.SimpleNamespace(f_flag=os.ST_NOEXEC)", "mounted with noexec: set TMPDIR"),
    ],
)
def test_an_old_python_or_a_folder_without_room_or_for_no_library_or_few_files_is_a_sentence(
    tmp_path: Path, fake: str, words: str
) -> None:
    program = f"import os, resource, runpy, sys, tempfile, types\nsys.argv[1:] = ['--installed']\n{fake}\n"
    program += "runpy.run_path('run.py', run_name='__main__')"
    env = {**os.environ, "OUT": str(tmp_path / "out"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=GPU, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert words in done.stderr
    assert {path.name for path in tmp_path.rglob("*")} <= {"out"}


def test_each_part_has_a_module() -> None:
    listed = subprocess.run(
        [sys.executable, "-c", "import run; print(*(part.name for part in run.PARTS))"],
        cwd=GPU, capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = listed.stdout.split()
    assert len(names) == 9
    assert {path.stem for path in (GPU / "parts").glob("*.py")} == set(names)


@pytest.mark.parametrize("only", [["--only", "large,lost"], pytest.param([], marks=pytest.mark.night)])
def test_the_parts_are_well_without_a_gpu(tmp_path: Path, only: list[str]) -> None:
    env = {**os.environ, "OUT": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, GPU / "run.py", "--installed", *only], env=env, capture_output=True, text=True, check=False
    )
    report = json.loads((tmp_path / "gpu-report.json").read_text())
    assert [part for part in report["parts"] if part["verdict"] == "failed"] == [], done.stderr
    assert done.returncode == 0
    assert len(report["parts"]) == (2 if only else 9)
    assert all(part["checks"] or part["verdict"] == "not run" for part in report["parts"])


def test_the_load_counts_its_answers_and_looks_when_they_begin_and_end() -> None:
    looks: list[float] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        request = request_bytes(b"1", path="/predict", accept="*/*")
        began = time.monotonic()
        found = load(
            server.server_address[1], [request], callers=3, seconds=1.0, warmup=0.3,
            look=lambda: looks.append(time.monotonic()),
        )  # fmt: skip
        server.shutdown()
    assert found.rate > 0
    assert found.wrong == 0
    assert 0 < found.p50_ms <= found.p99_ms
    first, last = looks
    assert first >= began + 0.3
    assert last >= began + 0.3 + 1.0


def test_pages_of_inputs_are_pinned_once() -> None:
    pytest.importorskip("numpy")
    from copy_services import page_runs

    page = os.sysconf("SC_PAGESIZE")
    assert page_runs([(10 * page + 192, 2 * page), (13 * page, 5), (2 * page, page), (20 * page + 1, 1)]) == [
        (2 * page, 3 * page), (10 * page, 14 * page), (20 * page, 21 * page),
    ]  # fmt: skip
    assert page_runs([(5, 10), (page - 1, 2)]) == [(0, 2 * page)]


# -- the report -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON", b"[]", b"{}", b'{"check": 1}', b'{"figure": "a", "unit": "s", "values": []}', b"\xff",
        b'{"figure": "a", "unit": "s", "values": ["x"]}', b'{"check": "a", "ok": 1, "words": ""}',
    ],
)  # fmt: skip
def test_a_line_that_is_no_finding_is_refused(line: bytes) -> None:
    with pytest.raises(Garbled):
        PartReport("part").add(line)


def test_a_part_may_not_fill_the_report() -> None:
    report = PartReport("part")
    for _ in range(MOST_FINDINGS):
        report.add(b'{"note": "again"}')
    with pytest.raises(Garbled, match=f"more than {MOST_FINDINGS}"):
        report.add(b'{"note": "again"}')


def test_a_figure_that_is_told_again_keeps_its_place() -> None:
    report = PartReport("part")
    for values in ("[1]", "[4, 3]"):
        for name in ("first", "second"):
            report.add(f'{{"figure": "{name}", "unit": "s", "values": {values}}}'.encode())
    assert report.figures == [Figure("first", "s", 3, 3.5, 4, 2), Figure("second", "s", 3, 3.5, 4, 2)]


def test_the_page_has_a_row_for_each_subject_and_a_column_for_each_aspect() -> None:
    part = PartReport("speed", "ok", "well | done")
    part.figures = [
        Figure("a: rate", "1/s", 1, 2, 3, 3),
        Figure("b: rate", "1/s", 4, 5, 6, 3),
        Figure("c", "MB", 7, 7, 7, 1),
    ]
    part.figures.append(Figure("b: time", "ms", 1000, 12345.6, 20000, 3))
    report = Report(
        {"name": "Card", "memory": 2**34, "driver": "1.2"}, {"python": "3.12"}, "compiled", "", "2026-01-01", [part]
    )
    page = "\n".join(report.page())
    assert "Card, 16 GiB, driver 1.2. Compiled build, 2026-01-01" in page
    assert "| speed | ok | 0 | well \\| done |" in page
    assert "| compiled build, min / median / max | rate, 1/s | time, ms | rounds |\n|---|---|---|---|\n" in page
    assert "| a | 1 / 2 / 3 |  | 3 |\n| b | 4 / 5 / 6 | 1 000 / 12 346 / 20 000 | 3 |" in page
    assert "| c | 7 MB |  |" in page
