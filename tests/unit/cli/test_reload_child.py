"""The processes below `penstock serve --reload`: how each is begun and ended, what it tries, and how it serves."""

import asyncio
import os
import socket
import sys

import pytest
from spoken import said_by

from penstock.cli import main, reload, reload_child
from penstock.cli.main import command_arguments, run_command
from penstock.cli.reload import SERVE, TRIED_WELL, TRY, child_environment

MODEL = """
import penstock as ps

class M(ps.Stage):
    examples = [0]

    def predict(self, x: int) -> str:
        return "a"

service = ps.Service(M{more})
{line}
"""


def write(folder, line="", more="", name="model"):
    (folder / f"{name}.py").write_text(MODEL.format(line=line, more=more))


def tried(folder, *words):
    arguments = command_arguments(["serve", "model.py", *words, "--reload"])
    return said_by(lambda: run_command(lambda: reload_child._try(arguments)), folder)


def test_what_can_be_served_is_tried_well_and_nothing_of_it_is_set_up(tmp_path):
    write(tmp_path, line="M.setup = lambda self: 1 / 0")
    assert tried(tmp_path) == (TRIED_WELL, "", "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("x +* 1", "SyntaxError: invalid syntax"),
        ("import nothing_there", "No module named 'nothing_there'"),
        ("raise SystemExit(0)", "exits the program with 0 while it is imported"),
        ("service = ps.Service(ps.stage(lambda x: x, name='f'))", "which a worker process cannot import"),
        ("del service", "has no service"),
    ],
)
def test_what_cannot_be_imported_is_told(tmp_path, line, words):
    write(tmp_path, line=line)
    status, out, error = tried(tmp_path)
    assert (status, out) == (1, "")
    assert words in error


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("", "different names, got"),
        (", name='docs'", "the server itself uses the path"),
        (", name='other', cpus=[4095]", "cpus [4095] are not among the allowed cores"),
    ],
)
def test_what_the_server_would_refuse_is_told(tmp_path, more, words):
    write(tmp_path)
    write(tmp_path, more=more, name="other")
    found = tried(tmp_path, "other")
    assert found.status == 1
    assert words in found.refusal


def test_a_file_of_keys_that_has_gone_is_told(tmp_path):
    write(tmp_path)
    found = tried(tmp_path, "--api-key-file", "keys")
    assert found.status == 1
    assert "api_key_file 'keys' cannot be read" in found.refusal


def test_a_service_drains_for_two_seconds_at_most_and_without_a_delay(monkeypatch):
    served = []
    monkeypatch.setattr(main, "_serve_with", lambda _, options, **more: served.append((options, more)) or 0)
    for drain in ("30", "0.5"):
        arguments = command_arguments(["serve", "model.py", "--drain-timeout", drain, "--drain-delay", "600"])
        assert main.serve_on(arguments, ["a socket"], drain=2.0, see_out=0.3) == 0
    assert [(options.drain_timeout, options.drain_delay) for options, _ in served] == [(2.0, 0.0), (0.5, 0.0)]
    assert served[0][1] == {"sockets": ["a socket"], "see_out": 0.3}


def test_the_process_that_serves_has_the_sockets_that_it_was_given(monkeypatch):
    served, ended, lifelines = [], [], []

    def serve_on(arguments, sockets, **more):
        names = [(sock.getsockname(), sock.getblocking(), sock.get_inheritable()) for sock in sockets]
        served.append((arguments.services, names, more))
        for sock in sockets:
            sock.close()
        return 7

    monkeypatch.setattr(reload_child, "begin_below", lifelines.append)
    monkeypatch.setattr(reload_child, "refuse_breakpoints", lambda: None)
    monkeypatch.setattr(reload_child, "serve_on", serve_on)
    monkeypatch.setattr(reload_child, "end_in_time", ended.append)
    with socket.create_server(("127.0.0.1", 0)) as sock, socket.create_server(("127.0.0.1", 0)) as other:
        names = [(each.getsockname(), False, False) for each in (sock, other)]
        numbers = [os.dup(each.fileno()) for each in (sock, other)]
        for number in numbers:
            os.set_inheritable(number, True)
        words = [SERVE, "99", ",".join(map(str, numbers)), "serve", "model.py"]
        monkeypatch.setattr(sys, "argv", ["reload_child", *words])
        with pytest.raises(SystemExit) as end:
            reload_child.main()
    assert (end.value.code, ended, lifelines) == (7, [7], [99])
    assert served == [(["model.py"], names, {"drain": 2.0, "see_out": 0.3})]


def test_a_child_writes_no_bytecode_and_does_not_reload_in_its_turn():
    environ = child_environment({"PENSTOCK_RELOAD": "1", "PATH": "/bin"})
    assert environ == {"PENSTOCK_RELOAD": "", "PATH": "/bin", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.parametrize(
    ("arguments", "env", "reloads"),
    [
        (["--reload"], {}, True),
        ([], {"PENSTOCK_RELOAD": "1"}, True),
        (["--no-reload"], {"PENSTOCK_RELOAD": "1"}, False),
        ([], {}, False),
    ],
)
def test_a_flag_or_a_variable_switches_it_on_and_the_flag_wins(tmp_path, monkeypatch, arguments, env, reloads):
    called = []
    monkeypatch.setattr(main, "_serve_reloading", lambda *_: called.append(True) or 0)
    monkeypatch.setattr(main, "_serve_with", lambda *_: called.append(False) or 0)
    assert said_by(lambda: main.main(["serve", "model.py", *arguments]), tmp_path, env).status == 0
    assert called == [reloads]


# -- a child, which is a shell here ------------------------------------------------------------------------------------


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Starts a child with output that runs a script; processes that it left would fail the test."""

    def start(script, on_end):
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))
        return reload._Child(TRY, ["serve", "model.py"], tmp_path, (), on_end, output=bytearray())

    return start


async def test_a_child_that_ends_gives_its_status_and_output_and_its_group_ends_with_it(child, tmp_path):
    ended, said = asyncio.get_running_loop().create_future(), []
    started = child("echo penstock: $3 $4 in $(pwd) $PYTHONDONTWRITEBYTECODE; sleep 1000 & exit 3", ended.set_result)
    assert await asyncio.wait_for(ended, 20) == 3
    started.show(lambda words, _level: said.append(words))
    assert said == [f"cannot load the change:\npenstock.cli.reload_child try in {tmp_path} 1"]


async def test_a_child_that_is_killed_ends_with_its_group(child):
    ended = asyncio.get_running_loop().create_future()
    child("sleep 1000 & sleep 1000", ended.set_result).kill()
    assert await asyncio.wait_for(ended, 20) == -9


async def test_of_a_child_that_is_given_up_nobody_hears(child):
    ended = asyncio.get_running_loop().create_future()
    child("sleep 1000", lambda _: pytest.fail("told")).give_up()
    child("exit 0", ended.set_result)  # it ends later
    await asyncio.wait_for(ended, 20)
