"""What shells complete: they ask the command itself, in a way of `argcomplete`, and bash is asked for real."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from served import PATIENCE_SECONDS

BIN = Path(sys.executable).parent
GREETER = """
from pathlib import Path

import penstock as ps

Path("imported").touch()
service = ps.Service(len, name="mine")
other = ps.Service(len, name="yours")
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "greeter.py").write_text(GREETER)
    (tmp_path / "cert.pem").touch()
    for name in ("1", "12", ".stage-0123456789abcdef"):
        (tmp_path / "models" / "versions" / name).mkdir(parents=True)
    (tmp_path / "models" / "CURRENT").touch()
    # `penstock` as the shell finds it, whichever build of it is tested.
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "penstock"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m penstock.cli.main "$@"\n')
    command.chmod(0o755)
    return tmp_path


def environment(folder, **more):
    return {**os.environ, "PATH": f"{folder / 'bin'}:{BIN}:{os.environ['PATH']}", **more}


def ask(folder, line, shell):
    """What the command answers to a shell, by the variables that the shell's script sets."""
    variables = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": shell,
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " ",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(folder / "answers"),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "",
        "IFS": "\n",
        **({"_ARGCOMPLETE_DFS": "\t"} if shell == "fish" else {}),
    }
    command = [sys.executable, "-m", "penstock.cli.main"]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder, **variables), timeout=PATIENCE_SECONDS, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    answers = (folder / "answers").read_text().split("\n")
    # Behind the word itself zsh and fish are told what it is for; zsh wants colons within the word escaped.
    words = [answer.split("\t")[0] if shell == "fish" else answer for answer in answers]
    if shell == "zsh":
        words = [word.replace("\\:", "\0").split(":")[0].replace("\0", ":") for word in words]
    return {word.strip() for word in words if word}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_is_told_commands_flags_choices_and_services(folder, shell):
    assert {"serve", "check", "jobs", "generate"} <= ask(folder, "penstock ", shell)
    assert ask(folder, "penstock generate ", shell) == {"haproxy", "nginx", "systemd", "k8s", "keda"}
    assert ask(folder, "penstock generate nginx --listen ", shell) == set()
    assert ask(folder, "penstock generate nginx --listen-cert cer", shell) == {"cert.pem"}
    assert ask(folder, "penstock generate k8s greeter:s", shell) == {"greeter:service"}
    assert ask(folder, "penstock serve --log-f", shell) == {"--log-format"}
    assert ask(folder, "penstock serve --log-format ", shell) == {"text", "json"}
    assert ask(folder, "penstock serve --port ", shell) == set()
    assert ask(folder, "penstock serve --workers ", shell) == {"1", "2", "4", "8"}
    levels = {"debug", "info", "warning", "error", "critical"}
    assert ask(folder, "penstock serve --log-level ", shell) == levels
    assert ask(folder, "penstock serve --log-level info,my.model=d", shell) == {"info,my.model=debug"}
    assert ask(folder, "penstock serve ", shell) == {"greeter:service", "greeter:other", "models"}
    assert ask(folder, "penstock serve greeter:service gre", shell) == {"greeter:service", "greeter:other"}
    assert ask(folder, "penstock check greeter:o", shell) == {"greeter:other"}
    assert ask(folder, "penstock serve greeter.py:o", shell) == {"greeter.py:other"}
    assert ask(folder, "penstock jobs pu", shell) == {"purge"}
    assert ask(folder, "penstock jobs list --state d", shell) == {"dead"}
    assert ask(folder, "penstock jobs submit --json", shell) == {"--json", "--jsonl"}
    assert ask(folder, "penstock jobs status ", shell) == set()
    assert ask(folder, "penstock hea", shell) == {"health"}
    assert ask(folder, "penstock health ", shell) == set()
    assert not (folder / "imported").exists(), "a key that is pressed runs nobody's code"


def test_model_directories_and_their_versions_are_told(folder):
    assert {"publish", "rollback", "list", "prune"} <= ask(folder, "penstock model ", "bash")
    assert ask(folder, "penstock model rollback models --to ", "bash") == {"1", "12"}
    assert ask(folder, "penstock model rollback nothing --to ", "bash") == set()
    assert ask(folder, "penstock model prune --keep ", "bash") == set()
    assert ask(folder, "penstock serve mod", "bash") == {"models"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_after_the_line_that_switches_it_on(folder):
    script = """
        eval "$(register-python-argcomplete penstock)"
        complete -p penstock >&2
        ask() {
            COMP_LINE="$1"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
            COMPREPLY=()
            _python_argcomplete penstock
            printf '%s,' "${COMPREPLY[@]}"; echo
        }
        ask 'penstock ch'
        ask 'penstock serve --access-log --log-format j'
        ask 'penstock serve greeter:s'
        ask 'penstock serve --tls-cert cer'
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=folder, env=environment(folder), timeout=PATIENCE_SECONDS, capture_output=True, text=True,
    )  # fmt: skip
    assert "_python_argcomplete" in done.stderr, done.stderr
    # Bash takes a colon for the end of a word: only what comes behind it is to be put there.
    assert [line.strip(" ,") for line in done.stdout.splitlines()] == ["check", "json", "service", "cert.pem"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_fish_completes_after_the_line_that_switches_it_on(folder):
    script = "register-python-argcomplete --shell fish penstock | source; complete -C 'penstock serve greeter:o'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", script],
        cwd=folder, env=environment(folder), timeout=PATIENCE_SECONDS, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.split() == ["greeter:other"], done.stderr


def test_nothing_of_it_is_imported_where_no_shell_asks():
    asked = "import sys, penstock.cli.main as m; m._parser(); print('argcomplete' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
