"""The example that replaces two replicas behind real proxies says what came of it, and what it had to do without."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from proxies import PROXIES, proxy_program

from terminals import run_on_terminal

EXAMPLE = Path(__file__).parents[2] / "examples" / "rolling"
INSTALLED = [name for name in PROXIES if proxy_program(name)]
needs_a_proxy = pytest.mark.skipif(not INSTALLED, reason="neither haproxy nor nginx is installed: make proxies")
FOLLOWED = [
    r"{proxy} +listens on http://127\.0\.0\.1:\d+, in front of two replicas",
    r"replica a is asked to end \(SIGTERM\); it serves on for 2 s",
    r"replica a has ended with status 0; another one is started in its place",
    r"replica a is ready",
    r"replica b is asked to end \(SIGTERM\); it serves on for 2 s",
    r"replica b has ended with status 0; another one is started in its place",
    r"replica b is ready",
    r"{proxy} +both replaced in [\d.]+ s: \d+ answers in Python(, \d+ answers in TypeScript)?; 0 failed, 0 run twice",
]


@pytest.fixture
def copied(tmp_path):
    """Copies the example, with other words in place of some of its own; answers the folder."""

    def copy(**words):
        folder = shutil.copytree(EXAMPLE, tmp_path / "rolling", ignore=shutil.ignore_patterns("__pycache__"))
        for name, (old, new) in words.items():
            file = folder / f"{name}.py"
            assert old in file.read_text()
            file.write_text(file.read_text().replace(old, new))
        return folder

    return copy


@contextlib.contextmanager
def environ():
    """What the demonstration is run with; it leaves no file behind.  Its proxies are somebody else."""
    with tempfile.TemporaryDirectory(prefix="penstock-", dir="/tmp") as files:
        Path(files).chmod(0o755)
        yield {"TMPDIR": files, "PYTHONDONTWRITEBYTECODE": "1"}
        assert list(Path(files).iterdir()) == []


def run_without_node(folder, *arguments):
    """Run the demonstration in `folder`, where only proxies may be found."""
    with environ() as env:
        return subprocess.run(
            [sys.executable, "demo.py", *arguments],
            cwd=folder,
            env={**os.environ, **env, "PATH": str(Path(sys.executable).parent)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )


@pytest.mark.night
@needs_a_proxy
def test_two_replicas_are_replaced_and_nothing_fails_or_runs_twice(running):
    before = set(EXAMPLE.iterdir())
    with environ() as env, running("rolling", sys.executable, "demo.py", INSTALLED[0], env=env) as program:
        assert program.end(limit=90) == 0, program.output
    assert set(EXAMPLE.iterdir()) == before
    assert "\x1b" not in program.output
    *told, last = program.output.splitlines()
    without = re.fullmatch(r"0 failed, 0 run twice(?: \(Python alone: (.+)\))?", last)
    assert without, last
    if without[1]:
        assert re.match(r"node is not installed: make node$|the TypeScript client is not built: npm ci", without[1])
        assert told.pop(0).endswith(f"demo      Python alone: {without[1]}")
    for pattern, line in zip(FOLLOWED, told, strict=True):
        assert re.fullmatch(r" *[\d.]+ s  " + pattern.format(proxy=INSTALLED[0]), line), (pattern, line)


@pytest.mark.night
@needs_a_proxy
def test_the_demonstration_fails_where_something_runs_twice_and_says_what_it_did_without(copied):
    twice = 'runs.write(b"%d\\n" % number * (1 + (number % 10 == 9)))'
    folder = copied(
        service=('runs.write(b"%d\\n" % number)', twice),
        replacing=("for replica in replicas:", "for replica in ():"),  # which is not what this is about
    )
    done = run_without_node(folder, INSTALLED[0])
    assert done.returncode == 1, done.stderr
    *told, last = done.stdout.splitlines()
    without = "(Python alone: node is not installed: make node)"
    assert re.fullmatch(rf"0 failed, [1-9]\d* run twice {re.escape(without)}", last), done.stderr
    assert any(re.search(r" \d*9 ran 2 times$", line) for line in told), told


def test_where_no_proxy_is_installed_the_demonstration_names_each_and_fails(copied):
    done = run_without_node(copied(proxy=("/usr/sbin:/sbin", "/nowhere")))
    assert done.returncode == 1
    assert done.stderr == "haproxy is not installed: make proxies; nginx is not installed: make proxies\n"


def test_what_was_answered_and_never_ran_has_failed():
    code = """
from pathlib import Path
from callers import Callers
from judging import Outcome, judge
callers = Callers("Python")
callers.answered = [1, 2, 3]
callers.failed = ["4: lost"]
assert judge("nginx", [callers], Path("/dev/stdin")) == Outcome(failed=2, twice=1)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=EXAMPLE, input="1\n2\n2\n", capture_output=True, text=True, check=True
    )
    assert [line.split("nginx", 1)[1].strip() for line in done.stdout.splitlines()] == [
        "in Python, 4: lost",
        "3 was answered and never ran",
        "2 ran 2 times",
    ]


def test_on_a_terminal_one_line_moves():
    code = """
from telling import tell, until
goes = iter("12")
until(lambda: not goes.__length_hint__(), goes.__next__)
tell("x", "y")
"""
    written = run_on_terminal([sys.executable, "-c", code], cwd=EXAMPLE)
    lines = written.split("\r\x1b[K")
    assert [line[9:].strip() for line in lines[1:]] == ["1", "2", "x         y"]
