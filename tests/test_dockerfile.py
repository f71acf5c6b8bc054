"""The Dockerfile: what it ships is held to its promises, and its steps are run, without a container's engine.

What an engine would do is done here by hand: `.dockerignore` decides what is copied, the steps that install Python
packages run in an empty folder, and what the image would start is started.  Steps of apt are only simulated.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser
from served import PATIENCE_SECONDS, Program, write_module

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "containers.md"
BUILD_TOOLS = re.compile(r"gcc|g\+\+|clang|make|build-essential|-dev\b|setuptools|git\b")
INSTALL_LIMIT = 480.0
"""Seconds that a step may take.  The longest installs what the build needs and what Penstock needs: 30 s of CPU."""
COMPILE_LIMIT = 1700.0
"""The same where it compiles too."""


class Stage:
    """What a Dockerfile says from one FROM to the next."""

    def __init__(self, image: str) -> None:
        self.image = image
        self.steps: list[tuple[str, str]] = []

    def all(self, instruction: str) -> list[str]:
        return [value for name, value in self.steps if name == instruction]

    def only(self, instruction: str) -> str:
        (value,) = self.all(instruction)
        return value


def parser_of(text: str, **arguments: str) -> DockerfileParser:
    return DockerfileParser(fileobj=io.BytesIO(text.encode()), build_args=arguments)


def stages_of(text: str) -> list[Stage]:
    found: list[Stage] = []
    for step in parser_of(text).structure:
        if step["instruction"] == "FROM":
            found.append(Stage(step["value"]))
        elif found and step["instruction"] != "COMMENT":
            found[-1].steps.append((step["instruction"], step["value"]))
    return found


TEXT = (ROOT / "Dockerfile").read_text()
BUILD, SHIPPED = stages_of(TEXT)


def exec_form(value: str) -> list[str]:
    """The words of a command that no shell reads; fails where one would."""
    words = json.loads(value)
    assert isinstance(words, list)
    assert all(isinstance(word, str) for word in words)
    return words


# -- what is promised -------------------------------------------------------------------------------------------------


def test_both_stages_are_built_on_the_image_that_is_named_as_base():
    assert (BUILD.image, SHIPPED.image) == ("${BASE} AS build", "${BASE}")
    assert parser_of(TEXT).parent_images == ["python:3.11-slim"] * 2
    cuda = "nvidia/cuda:12.6.3-cudnn-runtime-ubuntu24.04"
    assert parser_of(TEXT, BASE=cuda).parent_images == [cuda] * 2


def test_what_is_shipped_has_no_build_tools_and_the_lists_of_apt_are_removed():
    assert BUILD_TOOLS.search(" ".join(BUILD.all("RUN"))), "they are found where they are"
    for step in SHIPPED.all("RUN"):
        assert not BUILD_TOOLS.search(step), step
        assert "apt-get" not in step or step.rstrip("; }").endswith("rm -rf /var/lib/apt/lists/*"), step
    assert SHIPPED.all("COPY") == ["--from=build /opt/penstock /opt/penstock"]
    assert SHIPPED.all("ADD") == BUILD.all("ADD") == []


def test_it_runs_as_a_user_who_is_not_root_and_whom_kubernetes_knows_for_that():
    assert SHIPPED.only("USER") == "10001"
    names = [name for name, _ in SHIPPED.steps]
    assert "RUN" not in names[names.index("USER") :]


def test_no_shell_stands_between_the_engine_and_what_it_starts():
    assert exec_form(SHIPPED.only("ENTRYPOINT")) == ["penstock"]
    assert exec_form(SHIPPED.only("CMD")) == ["serve", "model:service"]
    assert health_check() == ["penstock", "health"]
    assert SHIPPED.only("STOPSIGNAL") == "SIGTERM"


def health_check() -> list[str]:
    flags, _, command = SHIPPED.only("HEALTHCHECK").partition("CMD ")
    assert set(re.findall(r"--([a-z-]+)=", flags)) == {"interval", "timeout", "start-period", "retries"}
    return exec_form(command)


def test_the_health_check_gives_up_before_the_engine_does():
    from penstock.cli.health_command import TIMEOUT_SECONDS

    (seconds,) = re.findall(r"--timeout=(\d+)s", SHIPPED.only("HEALTHCHECK"))
    assert int(seconds) > TIMEOUT_SECONDS


def test_the_port_that_is_exposed_is_the_one_that_is_listened_on():
    from penstock.config import ServerOptions

    assert SHIPPED.only("EXPOSE") == str(ServerOptions().port)
    assert environment_of(SHIPPED)["PENSTOCK_HOST"] == "0.0.0.0"


def test_images_that_the_page_builds_from_it_run_as_the_same_user_and_start_without_a_shell():
    blocks = re.findall(r"^```dockerfile\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert blocks
    for text in blocks:
        last = stages_of(text)[-1]
        assert last.image == "penstock"
        assert last.all("USER")[-1:] in ([], ["10001"])
        assert exec_form(last.only("CMD"))[0] == "serve"


# -- what apt is asked for --------------------------------------------------------------------------------------------


def apt_packages(stage: Stage) -> set[str]:
    found = re.findall(r"apt-get install ((?:[\w.+-]+ ?)+)", "\n".join(stage.all("RUN")))
    return {word for words in found for word in words.split() if not word.startswith("-")}


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt here")
def test_apt_has_every_package_that_is_asked_for():
    assert apt_packages(BUILD) == {"g++", "python3", "python3-dev", "python3-venv"}
    assert apt_packages(SHIPPED) == {"python3"}
    wanted = sorted(apt_packages(BUILD) | apt_packages(SHIPPED))
    known = subprocess.run(["apt-cache", "show", "python3"], capture_output=True, check=False)
    if known.returncode:
        pytest.skip("the lists of apt are not here")
    simulated = subprocess.run(
        ["apt-get", "install", "--simulate", "--yes", "--no-install-recommends", *wanted],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert simulated.returncode == 0, simulated.stderr


# -- what is copied ---------------------------------------------------------------------------------------------------


def pattern(line: str) -> re.Pattern[str]:
    """A line of `.dockerignore` as the engine reads it: also what is below a folder that matches does."""
    parts = [re.escape(part).replace(r"\*", "[^/]*") for part in line.split("/")]
    return re.compile("/".join(parts).replace("[^/]*[^/]*/", "(?:.*/)?") + "(?:/.*)?")


IGNORED = [
    (line.startswith("!"), pattern(line.removeprefix("!")))
    for line in (ROOT / ".dockerignore").read_text().splitlines()
    if line and not line.startswith("#")
]


def sent(path: str) -> bool:
    """Whether the engine gets this file; the last line that matches decides."""
    return next((kept for kept, line in reversed(IGNORED) if line.fullmatch(path)), True)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("setup.py", True),
        ("LICENSE", True),
        ("src/penstock/cli/main.py", True),
        ("src/penstock/py.typed", True),
        ("src/penstock/jobs/stores/lua/claim.lua", True),
        ("src/penstock/cli/__pycache__/main.cpython-311.pyc", False),
        ("src/penstock/core/item.cpython-311-x86_64-linux-gnu.so", False),
        ("src/penstock.egg-info/PKG-INFO", False),
        ("src/penstock/server/pages/assets/LICENSE", False),
        ("Dockerfile", False),
        (".git/config", False),
        (".venv/bin/python", False),
        ("build/compiled/penstock/config.py", False),
        ("docs/setup.py", False),
        ("keys.txt", False),
    ],
)
def test_only_what_the_build_needs_is_sent_to_the_engine(path, expected):
    assert sent(path) is expected


def test_everything_that_git_has_of_the_package_is_copied_and_nothing_else():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no working tree of git")
    needed = {"pyproject.toml", "setup.py", "README.md", "LICENSE"}
    tracked = listed.stdout.splitlines()
    assert {path for path in tracked if sent(path)} == needed | {path for path in tracked if path.startswith("src/")}


def copy_as_the_engine(step: str, folder: Path) -> None:
    """Do a COPY of the first stage, with `folder` as the working directory."""
    *sources, target = step.split()
    for source in sources:
        found = ROOT / source
        files = [path for path in found.rglob("*") if path.is_file()] if found.is_dir() else [found]
        for path in files:
            name = path.relative_to(ROOT).as_posix()
            if sent(name):
                inside = path.relative_to(found) if found.is_dir() else path.name
                there = folder / target / inside
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, there)


# -- what is run ------------------------------------------------------------------------------------------------------


def environment_of(stage: Stage) -> dict[str, str]:
    """The variables that ENV and ARG of a stage set."""
    words = [word for name, value in stage.steps if name in ("ENV", "ARG") for word in shlex.split(value)]
    return dict(word.split("=", 1) for word in words if "=" in word)


def below(folder: Path, text: str) -> str:
    """`text` with the folders of the image below `folder`."""
    return re.sub(r"(?<![\w.])/(opt/penstock|build|service)\b", rf"{folder}/\1", text)


def run_build_stage(folder: Path, limit: float, **arguments: str) -> None:
    """Do all of the first stage but its steps of apt below `folder`; `arguments` are those of the build."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHON"))}
    # The Python of the image stands for `python3`, and is here the one that runs the tests.
    python = folder / "python"
    python.mkdir()
    (python / "python3").symlink_to(sys.executable)
    environ = {**clean, "PATH": f"{python}:{clean['PATH']}", **environment_of(BUILD), **arguments}
    work = folder
    for name, value in BUILD.steps:
        if name == "WORKDIR":
            work = Path(below(folder, value))
            work.mkdir()
        elif name == "COPY":
            copy_as_the_engine(value, work)
        elif name == "RUN" and "apt-get" not in value:
            done = subprocess.run(
                ["/bin/sh", "-c", below(folder, value)],
                cwd=work, env=environ, capture_output=True, text=True, timeout=limit, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{value}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


SERVED = """
import penstock as ps

def double(x: float) -> float:
    return 2 * x

service = ps.Service(double, name="mine")
"""


class Image:
    """What the Dockerfile makes, in a folder that stands for the root of the container."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.service = Path(below(folder, SHIPPED.only("WORKDIR")))
        self.service.mkdir()
        path = below(folder, environment_of(SHIPPED)["PATH"]).replace("$PATH", os.environ["PATH"])
        # A container has port 8000 for itself, and a test has not.
        self.environ = {**environment_of(SHIPPED), "PATH": path, "PENSTOCK_UDS": str(folder / "http.sock")}

    def ask(self) -> tuple[int, str]:
        """What the health check of the image says."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHON"))}
        done = subprocess.run(
            health_check(), cwd=self.service, env={**clean, **self.environ}, capture_output=True, text=True,
            timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def index(tmp_path):
    """Skips where there is no index of packages: the build takes what it needs from one."""
    asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path / "asked")]
    if subprocess.run([*asked, "flask-swagger-ui==5.34.0"], capture_output=True, check=False).returncode:
        pytest.skip("no index of Python packages can be reached")


@pytest.mark.parametrize(
    ("wish", "build", "limit"),
    [
        pytest.param("0", "plain Python", INSTALL_LIMIT, marks=pytest.mark.timeout(600), id="plain"),
        # What the image has by default.  It takes minutes of a core, and `make compiled` builds the same anyway.
        pytest.param(
            "1", "compiled", COMPILE_LIMIT, marks=[pytest.mark.timeout(2000), pytest.mark.soak], id="compiled"
        ),
    ],
)
def test_what_the_steps_install_serves_and_is_healthy(index, tmp_path, wish, build, limit):
    run_build_stage(tmp_path, limit, PENSTOCK_COMPILE=wish)
    image = Image(tmp_path)
    write_module(image.service, SERVED)
    assert not list((tmp_path / "opt").rglob("setuptools")), "a build tool"
    assert list((tmp_path / "opt").rglob("swagger-ui-bundle.js")), "the files of the page at /docs"
    assert image.ask() == (2, f"unreachable: unix:{tmp_path}/http.sock: No such file or directory\n")
    command = [*exec_form(SHIPPED.only("ENTRYPOINT")), *exec_form(SHIPPED.only("CMD"))]
    found = shutil.which(command[0], path=image.environ["PATH"])
    assert found == str(tmp_path / "opt" / "penstock" / "bin" / "penstock")
    server = Program(image.service, found, *command[1:], env={**image.environ, "PYTHONPATH": ""})
    try:
        server.wait_for("ready on")
        assert f"({build}; Python" in server.output
        assert image.ask() == (0, "ready\n")
        server.signal(getattr(signal, SHIPPED.only("STOPSIGNAL")))
        assert server.wait() == 0
        assert image.ask()[0] == 2
    finally:
        server.destroy()
