"""`penstock generate` in this process: what is written where, and what is refused how."""

from __future__ import annotations

import os
import stat

import pytest

from penstock.cli import main
from penstock.cli.config_command import write_file
from penstock.errors import PenstockError

PROXY = ("--listen", "127.0.0.1:8080", "--server", "127.0.0.1:8001", "--server", "127.0.0.1:8002", "--drain-delay", "2")
CALLS = {
    "haproxy": ("haproxy", *PROXY),
    "nginx": ("nginx", *PROXY),
    "systemd": ("systemd", "prices:service", "--user", "prices"),
    "k8s": ("k8s", "prices:service", "--image", "example.org/prices:1", "--drain-delay", "5"),
    "keda": ("keda", "--service", "prices", "--prometheus", "http://prometheus:9090"),
}


@pytest.fixture
def config(capsys, monkeypatch, tmp_path):
    """Run `penstock generate …` in a folder of its own; its exit status and what it wrote to both streams."""
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*words):
        capsys.readouterr()
        try:
            arguments = main.command_arguments(["generate", *words])
        except SystemExit as end:
            status = end.code
        else:
            status = main.run_command(lambda: arguments.run(arguments))
        return status, *capsys.readouterr()

    return run


@pytest.mark.parametrize("words", CALLS.values(), ids=list(CALLS))
def test_a_file_goes_to_standard_output_and_nothing_else_is_said(config, words):
    status, out, err = config(*words)
    assert (status, err) == (0, "")
    assert f"`penstock generate {words[0]}`" in out
    assert out.endswith("\n")
    assert not out.endswith("\n\n")


@pytest.mark.parametrize("words", CALLS.values(), ids=list(CALLS))
def test_a_file_is_written_whole_or_not_at_all_and_never_over_another(config, words, tmp_path):
    _, out, _ = config(*words)
    path = tmp_path / "made"
    assert config(*words, "--output", str(path)) == (0, "", "")
    assert path.read_text() == out
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.write_text("mine")
    status, _, err = config(*words, "--output", str(path))
    assert status == 1
    assert "it exists; --force replaces it" in err
    assert path.read_text() == "mine"
    assert config(*words, "--output", str(path), "--force") == (0, "", "")
    assert path.read_text() == out
    assert [each.name for each in tmp_path.iterdir()] == ["made"]


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "made").symlink_to("theirs")
    with pytest.raises(PenstockError, match="it exists"):
        write_file(str(tmp_path / "made"), "ours", replace=False)
    write_file(str(tmp_path / "made"), "ours", replace=True)
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert not (tmp_path / "made").is_symlink()


@pytest.mark.parametrize("replace", [False, True])
def test_what_is_no_file_is_never_replaced_and_no_link_to_it_is(tmp_path, replace):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "made").symlink_to("pipe")
    # A pipe stands for a device: where this fails as root, /dev/null would be gone.
    for path in (str(tmp_path / "pipe"), str(tmp_path / "made"), str(tmp_path)):
        before = os.lstat(path)
        with pytest.raises(PenstockError, match="the path exists and is not a file, so it cannot be replaced"):
            write_file(path, "ours", replace=replace)
        assert (os.lstat(path).st_ino, os.lstat(path).st_mode) == (before.st_ino, before.st_mode)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["made", "pipe"]


@pytest.mark.parametrize("path", ["no/such/folder/made", "folder", "a\0b"])
def test_what_cannot_be_written_is_a_failure_that_leaves_nothing(config, path, tmp_path):
    (tmp_path / "folder").mkdir()
    status, _, err = config(*CALLS["nginx"], "--output", path, "--force")
    assert status == 1
    assert "--output" in err
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("haproxy", "--server", "a:1"), "--listen"),
        (("nginx", "--listen", "a:1"), "--server"),
        (("nginx", *PROXY, "--force"), "--force is for --output"),
        (("haproxy", *PROXY, "--server", "b"), "--server must be"),
        (
            ("haproxy", *PROXY, "--max-body-bytes", "x"),
            "--max-body-bytes (or PENSTOCK_MAX_BODY_BYTES): expected an integer, got 'x'",
        ),
        (("haproxy", *PROXY, "--port", "1"), "--port"),
        (("systemd", "prices:service", "--socket", "--by-socket"), "run the command once for each"),
        (("systemd", "prices:service", "--workers", "0"), "workers"),
        (("systemd", "prices:service", "--reload"), "--reload"),
        (("k8s", "prices:service"), "--image"),
        (("k8s", "prices:service", "--image", "a", "--replicas", "many"), "--replicas"),
        (("k8s", "prices:service", "--image", "a", "--host", "::"), "--host"),
        (("keda", "--service", "prices", "--prometheus", "http://a", "--target", "soon"), "--target"),
        (("keda", "--service", "prices", "--prometheus", "ftp://a"), "--prometheus"),
        (("envoy",), "invalid choice"),
    ],
)
def test_a_wrong_call_says_what_is_wrong_with_status_2(config, words, said):
    status, out, err = config(*words)
    assert (status, out) == (2, "")
    assert said in err


def test_what_a_proxy_cannot_promise_is_a_warning_and_the_file_is_there(config):
    status, out, err = config("haproxy", *PROXY, "--drain-delay", "0.5")
    assert status == 0
    assert "timeout server" in out
    assert "warning: drain_delay is 0.5 s" in err


def test_variables_hold_as_for_penstock_serve(config, monkeypatch):
    monkeypatch.setenv("PENSTOCK_TIMEOUT", "7")
    monkeypatch.setenv("PENSTOCK_PORT", "9000")
    monkeypatch.setenv("PENSTOCK_HOST", "192.0.2.1")
    assert "timeout server 12s" in config(*CALLS["haproxy"])[1]
    assert "--host 192.0.2.1 --port 9000 --timeout 7\n" in config(*CALLS["systemd"])[1]
    pods = config(*CALLS["k8s"])[1]
    assert "192.0.2.1" not in pods
    assert '"--port"\n            - "9000"' in pods


def test_how_an_artifact_is_opened_is_not_said_of_a_module(config, monkeypatch):
    monkeypatch.setenv("PENSTOCK_MODEL_FORMAT", "onnx")
    assert "--model-format" not in config(*CALLS["systemd"])[1]
    assert "--model-format onnx" in config("systemd", "./prices", "--user", "prices")[1]


def test_flags_of_every_kind_reach_the_command(config):
    flags = ("--workers", "2", "--trust-model-code", "--timeout", "7", "--access-log", "--host", "192.0.2.1")
    _, out, _ = config("systemd", "prices:service", "other:service", "--name", "both", *flags)
    (line,) = [line for line in out.splitlines() if line.startswith("ExecStart=")]
    command = (
        " serve prices:service other:service --host 192.0.2.1 --access-log --workers 2 --trust-model-code --timeout 7"
    )
    assert line.replace('"', "").endswith(f"penstock{command}")  # with quotes where the environment's path has a space
    assert "both.service" in out


def test_a_server_that_gets_its_socket_is_not_told_where_to_listen(config):
    flags = ("--host", "192.0.2.1", "--port", "80", "--drain-timeout", "7")
    _, service, _ = config("systemd", "prices:service", "--by-socket", *flags)
    _, socket, _ = config("systemd", "prices:service", "--socket", *flags)
    assert "serve prices:service --drain-timeout 7\n" in service
    assert "ListenStream=192.0.2.1:80\n" in socket
