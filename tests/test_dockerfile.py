"""The Dockerfile is read and held to its promises; a night installs what it installs, without a container's engine."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from dockerfile_parse import DockerfileParser
from served import PATIENCE_SECONDS, Program, write_module

from registries import need_python_packages

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


def stages_of(text: str) -> list[Stage]:
    found: list[Stage] = []
    for step in DockerfileParser(fileobj=io.BytesIO(text.encode())).structure:
        if step["instruction"] == "FROM":
            found.append(Stage(step["value"]))
        elif found and step["instruction"] != "COMMENT":
            found[-1].steps.append((step["instruction"], step["value"]))
    return found


TEXT = (ROOT / "Dockerfile").read_text()
BUILD, SHIPPED = stages_of(TEXT)


def exec_form(value: str) -> list[str]:
    """The words of a command that no shell reads; fails where one would."""
    return msgspec.json.decode(value, type=list[str])


# -- what is promised -------------------------------------------------------------------------------------------------


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
    assert "PENSTOCK_HOST=0.0.0.0" in SHIPPED.all("ENV")


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


@pytest.mark.night  # it asks the apt of the machine
@pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt here")
def test_apt_has_every_package_that_is_asked_for():
    assert "g++" in apt_packages(BUILD), "they are found where they are"
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

SOURCES = [source for step in BUILD.all("COPY") for source in shlex.split(step)[:-1]]
"""Files and folders of the working tree that the first stage takes."""
SENT = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]


def test_the_engine_is_sent_what_is_copied_and_nothing_else():
    assert all((ROOT / source).exists() for source in SOURCES)
    kept = 1 + len(SOURCES)
    assert sorted(SENT[:kept]) == sorted(["*", *(f"!{source}" for source in SOURCES)])
    assert SENT[0] == "*"
    assert not [line for line in SENT[kept:] if line.startswith("!")]


def test_what_is_held_back_of_the_sources_is_nothing_that_git_has():
    held_back = [f"--exclude={line}" for line in SENT if line != "*" and not line.startswith("!")]
    assert "--exclude=**/*.so" in held_back
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--ignored", *held_back], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("this is no working tree of git")
    assert listed.stdout == ""


def test_no_secret_is_an_argument_or_a_variable():
    names = [
        word.partition("=")[0]
        for stage in (BUILD, SHIPPED)
        for name, value in stage.steps
        if name in ("ARG", "ENV")
        for word in shlex.split(value)
    ]
    assert "PENSTOCK_HOST" in names
    assert not [name for name in names if re.search("TOKEN|SECRET|PASSWORD|KEY|CREDENTIAL", name)]


# -- what is installed ------------------------------------------------------------------------------------------------

SERVED = """
import penstock as ps

def double(x: float) -> float:
    return 2 * x

service = ps.Service(double, name="mine")
"""


@pytest.mark.parametrize(
    ("wish", "build", "limit"),
    [
        pytest.param(
            "0", "plain Python", INSTALL_LIMIT, marks=[pytest.mark.timeout(600), pytest.mark.night], id="plain"
        ),
        # The image has this by default.  It takes minutes of a core, and `make compiled` builds the same anyway.
        pytest.param(
            "1", "compiled", COMPILE_LIMIT, marks=[pytest.mark.timeout(2000), pytest.mark.soak], id="compiled"
        ),
    ],
)
def test_what_the_steps_install_serves_and_is_healthy(tmp_path, wish, build, limit):
    need_python_packages()
    installed, work = tmp_path / "penstock", tmp_path / "build"
    work.mkdir()
    not_sent = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", "assets")
    for source in SOURCES:
        path = ROOT / source
        shutil.copytree(path, work / source, ignore=not_sent) if path.is_dir() else shutil.copy(path, work)
    steps = [step for step in BUILD.all("RUN") if "/opt/penstock" in step]
    assert [re.findall(r"venv|install|uninstall", step)[0] for step in steps] == ["venv", "install", "uninstall"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHON"))}
    arguments = dict(value.split("=", 1) for value in BUILD.all("ARG"))
    for step in steps:
        line = step.replace("/opt/penstock", str(installed)).replace("python3 ", f"{sys.executable} ")
        done = subprocess.run(
            ["/bin/sh", "-c", line], cwd=work, env={**clean, **arguments, "PENSTOCK_COMPILE": wish},
            capture_output=True, text=True, timeout=limit, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{step}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert not list(installed.rglob("setuptools")), "a build tool"
    assert list(installed.rglob("swagger-ui-bundle.js")), "the files of the page at /docs"

    # A container has port 8000 for itself, and a test has not.
    environ = {"PATH": f"{installed}/bin:{clean['PATH']}", "PENSTOCK_UDS": str(tmp_path / "http.sock")}
    write_module(tmp_path, SERVED)

    def ask() -> int:
        return subprocess.run(
            [installed / "bin" / "penstock", *health_check()[1:]], env={**clean, **environ},
            capture_output=True, timeout=PATIENCE_SECONDS, check=False,
        ).returncode  # fmt: skip

    assert ask() == 2
    command = exec_form(SHIPPED.only("CMD"))
    server = Program(tmp_path, str(installed / "bin" / "penstock"), *command, env={**environ, "PYTHONPATH": ""})
    try:
        server.wait_for("ready on")
        assert f"({build}; Python" in server.output
        assert ask() == 0
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert ask() == 2
    finally:
        server.destroy()
