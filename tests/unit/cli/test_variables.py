"""Which variables are told that they set nothing, and which flags are told how they are spelt."""

from __future__ import annotations

import pytest

from penstock.cli.given_place import _places
from penstock.cli.main import _queue_of_clients, command_arguments
from penstock.cli.model_folders import options_of_folders
from penstock.cli.options import WronglyCalled, server_options, service_fields, unused_variables
from penstock.config import ArtifactOptions, ServerOptions

LINK = {"PENSTOCK_PORT": "tcp://10.0.0.1:8000"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PENSTOCK_LOG_FORMT", "PENSTOCK_LOG_FORMAT"),
        ("PENSTOCK_PROT", "PENSTOCK_PORT"),
        ("PENSTOCK_LOGLEVEL", "PENSTOCK_LOG_LEVEL"),
        ("PENSTOCK_WORKER", "PENSTOCK_WORKERS"),
        ("PENSTOCK_MAX_INFLIGHT", "PENSTOCK_MAX_IN_FLIGHT"),
        ("PENSTOCK_API_KEYS_FILES", "PENSTOCK_API_KEY_FILE"),
    ],
)
def test_a_variable_near_to_that_of_an_option_is_told(name, meant):
    assert unused_variables({name: "x"}) == [f"unknown variable {name}: did you mean {meant}?"]


@pytest.mark.parametrize(
    "name",
    [
        "PENSTOCK_PORT", "PENSTOCK_COMPILE", "PENSTOCK_STAGE_PYTHONPATH", "PENSTOCK_PICTURES", "PENSTOCK_MODEL_PATH",
        "PENSTOCK_SERVICE_HOST", "PENSTOCK_SERVICE_PORT", "PENSTOCK_PORT_8000_TCP_ADDR", "PENSTOCK_",
        "MY_PENSTOCK_PROT", "PROT",
    ],
)  # fmt: skip
def test_every_other_variable_is_left_alone(name):
    assert unused_variables({name: "x"}) == []


def test_a_variable_that_is_empty_sets_nothing_anyhow():
    assert unused_variables({"PENSTOCK_PROT": ""}) == []


def test_the_link_of_a_kubernetes_service_sets_no_port_and_is_told():
    arguments = command_arguments(["serve", "m:service"])
    assert server_options(arguments, LINK) == ServerOptions()
    (line,) = unused_variables(LINK)
    assert line.startswith(
        "the variable PENSTOCK_PORT is ignored: 'tcp://10.0.0.1:8000' is the address of a Kubernetes"
    )
    assert _places(arguments, LINK) == []
    assert _places(arguments, {"PENSTOCK_PORT": "8000"}) == ["the variable PENSTOCK_PORT"]


def test_a_variable_is_read_where_the_command_has_its_flag_and_nowhere_else():
    others = {"PENSTOCK_PORT": "many", "PENSTOCK_TLS_CERT": "c", "PENSTOCK_LOG_FORMAT": "json"}
    arguments = command_arguments(["worker", "run", "m:Stage", "--connect", "s"])
    assert server_options(arguments, others) == ServerOptions(log_format="json")
    scaled = ["generate", "keda", "--service", "s", "--prometheus", "http://p"]
    assert service_fields(command_arguments(scaled), {"PENSTOCK_TIMEOUT": "5", "PENSTOCK_QUEUE_ORDER": "x"}) == {
        "timeout": 5
    }


def test_how_an_artifact_is_opened_is_read_where_one_is_named():
    environ = {"PENSTOCK_MODEL_FORMAT": "onnx"}
    arguments = command_arguments(["serve", "app:service"])
    assert options_of_folders(arguments, ["app:service"], environ) == ArtifactOptions()
    assert options_of_folders(arguments, ["app:service"], {"PENSTOCK_MODEL_DIGEST": "of an image"}) == ArtifactOptions()
    assert options_of_folders(arguments, ["./model"], environ) == ArtifactOptions(model_format="onnx")


def test_what_jobs_may_name_is_read_where_there_is_a_queue(monkeypatch):
    monkeypatch.setenv("PENSTOCK_MAX_INLINE_BYTES", "no number")
    assert _queue_of_clients(command_arguments(["serve", "app:service"])) is None
    with pytest.raises(WronglyCalled):
        _queue_of_clients(command_arguments(["serve", "app:service", "--queue-url", "sqlite:///q.db"]))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["serve", "m", "--hots", "::"], "unrecognized arguments: --hots ::; did you mean --host?"),
        (
            ["serve", "m", "--max_in_flight=5"],
            "unrecognized arguments: --max_in_flight=5; did you mean --max-in-flight?",
        ),
        (["serve", "m", "--prot=1", "--loglevel", "info"], "--loglevel info; did you mean --port, --log-level?"),
        (["serve", "m", "--max-queued-b", "1"], "--max-queued-b 1; did you mean --max-queued-bytes?"),
        (["serve", "m", "--remote-worker-socket-m", "600"], "did you mean --remote-worker-socket-mode?"),
        (["jobs", "submit", "--prio=3"], "unrecognized arguments: --prio=3; did you mean --priority?"),
        (["check", "m", "--tiemout", "1"], "unrecognized arguments: --tiemout 1; did you mean --timeout?"),
        (["serve", "m", "--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["check", "m", "--prot", "1"], "unrecognized arguments: --prot 1"),
        (["check", "m", "prot"], "unrecognized arguments: prot"),
    ],
)
def test_a_flag_that_is_not_known_or_not_whole_is_told_which_one_is_near(words, told, capsys):
    with pytest.raises(SystemExit) as ended:
        command_arguments(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.endswith(f"{told}\n")
    command = "jobs submit" if words[0] == "jobs" else words[0]
    assert said.startswith(f"usage: penstock {command} [options] ")


def test_a_flag_is_never_abbreviated(capsys):
    for words in (["serve", "m", "--por", "8000"], ["health", "--time", "1"], ["generate", "keda", "--serv", "m"]):
        with pytest.raises(SystemExit):
            command_arguments(words)


def test_an_option_that_can_never_be_is_called_by_its_flag_and_its_variable():
    for options, flags, said in (
        (
            service_fields,
            ["--max-in-flight", "0"],
            "--max-in-flight (or PENSTOCK_MAX_IN_FLIGHT) must be at least 1, got 0",
        ),
        (server_options, ["--port", "nope"], "--port (or PENSTOCK_PORT): expected an integer, got 'nope'"),
        (server_options, ["--tls-cert", "c"], "tls_cert and tls_key must be set together: one of them is missing"),
    ):
        with pytest.raises(WronglyCalled) as wrong:
            options(command_arguments(["serve", "m", *flags]), {})
        assert str(wrong.value) == said


def test_the_help_calls_a_share_no_seconds(capsys):
    with pytest.raises(SystemExit):
        command_arguments(["serve", "--help"])
    shown = capsys.readouterr().out
    assert "--background-share FRACTION" in shown
    assert "--liveness-deadline SECONDS" in shown
    assert "--min-free-memory N" in shown
