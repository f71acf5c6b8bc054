"""What `penstock serve` and `penstock consume` say of stages whose workers attach from outside, and of their socket."""

from __future__ import annotations

import re
import stat

import pytest
from spoken import spoken

SOURCE = """
import penstock as ps

service = ps.Service(ps.remote("square"), name="square")
other = ps.Service(ps.remote("cube"), name="cube")
ours = ps.Service(ps.stage(len, name="count"), name="ours")
"""
STARTED = (("serve", "--port", "0"), ("consume", "--queue-url", "sqlite:///jobs.db"))


@pytest.fixture(params=STARTED, ids=lambda started: started[0])
def start(request, module):
    """Has a command refuse the services in a module: its status, and what it says."""
    folder = module(SOURCE)

    def started(*arguments):
        command, *options = request.param
        names, flags = [a for a in arguments if ":" in a], [a for a in arguments if ":" not in a]
        found = spoken(folder, command, *names, *options, *flags)
        return found.status, found.refusal

    return started


def says(output, words):
    """One sentence, and no traceback."""
    assert "Traceback" not in output
    assert any(words in line for line in output.splitlines() if line.startswith("penstock: ")), output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--remote-worker-socket-mode", "rw"), "expected an octal number, such as 660, got 'rw'"),
        (("--max-remote-workers", "0"), "(or PENSTOCK_MAX_REMOTE_WORKERS) must be at least 1, got 0"),
    ],
)
def test_a_value_that_can_never_be_is_a_sentence_and_exit_2(start, options, words):
    status, output = start("model:service", *options)
    assert status == 2
    says(output, words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("model:service",), "service 'square': stage 'square' is remote and needs the path of a Unix socket"),
        (
            ("model:ours", "--remote-worker-socket", "w"),
            "service 'ours': remote_worker_socket is 'w', but the service has no remote stage",
        ),
        (
            ("model:service", "model:other", "--remote-worker-socket", "w"),
            "remote_worker_socket is the path of one socket, but the services 'square' and 'cube' have remote stages",
        ),
        (
            ("model:service", "--remote-worker-socket", "w", "--workers", "square=2"),
            "stage 'square': it is remote",
        ),
        (
            ("model:service", "--remote-worker-socket", "w", "--workers", "2"),
            "workers: 2 applies to no stage: square have remote workers",
        ),
        (("model:service", "--remote-worker-socket", "/no/such/folder/w"), "cannot listen on /no/such/folder/w"),
    ],
)
def test_what_does_not_fit_the_services_is_a_sentence_and_exit_1(start, arguments, words):
    status, output = start(*arguments)
    assert status == 1
    says(output, words)


def test_one_path_is_not_that_of_two_doors(module):
    found = spoken(module(SOURCE), "serve", "model:service", "--uds", "s", "--remote-worker-socket", "./s")
    assert found.status == 1
    says(
        found.refusal,
        ("remote_worker_socket of service 'square' and uds have the same path './s': each socket needs its own path"),
    )


def test_two_services_of_a_consumer_need_two_paths(module):
    again = 'again = ps.Service(ps.remote("again"), name="again", remote_worker_socket="./w")\n'
    folder = module(SOURCE + again + 'first = ps.Service(ps.remote("first"), name="first", remote_worker_socket="w")\n')
    found = spoken(folder, "consume", "model:first", "model:again", env={"PENSTOCK_QUEUE_URL": "sqlite:///q.db"})
    assert found.status == 1
    says(
        found.refusal,
        (
            "remote_worker_socket of service 'again' and remote_worker_socket of service 'first' have the same "
            "path './w'"
        ),
    )


def test_the_socket_is_the_external_services_alone_and_gone_after_the_stop(serve):
    flags = ("--remote-worker-socket", "w.sock", "--workers", "2", "--remote-worker-socket-mode", "660")
    server = serve(*flags, source=SOURCE, services=("service", "ours"))
    path = server.folder / "w.sock"
    server.wait_for(re.escape("starting square (square (remote))"))
    server.wait_for(re.escape("starting ours (count x2)"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    answer = server.http.get("/readyz")
    assert answer.status_code == 503
    assert re.search(r"square is starting: square waits for a remote worker, \d+ s", answer.text)
    assert server.http.post("/ours/predict", json=[1, 2]).json() == 2
    assert server.http.post("/square/predict", json=1).status_code == 503
    workers = server.http.get("/health").json()["services"]["square"]["stages"]["square"]["workers"]
    assert workers == []
    assert server.http.post("/square/predict", content=b"x", headers={"content-type": "text/csv"}).status_code == 415
    server.stop()
    assert not path.exists()


@pytest.mark.parametrize("command", ["serve", "consume"])
def test_help_names_the_flags_with_their_defaults_and_their_variables(tmp_path, command):
    status, output, _ = spoken(tmp_path, command, "--help", env={"COLUMNS": "200"})
    assert status == 0
    for name, default in (
        ("remote-worker-socket", "none"),
        ("remote-worker-socket-mode", "600"),
        ("max-remote-workers", "64"),
        ("reattach-timeout", "5.0"),
    ):
        assert f"--{name} " in output
        assert f"(default {default}; PENSTOCK_{name.replace('-', '_').upper()})" in " ".join(output.split())
