"""What `penstock generate` prints, before the programs and schemas that say whether it is one."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from proxies import PROXIES, check_command, free_port, needs_program, open_folder, unprivileged
from served import run

SYSTEMD = ("systemd", "prices:service", "--program", sys.executable, "--directory", "/")
UNITS = {
    "plain": (),
    "with everything": (
        *("--user", "daemon", "--port", "443", "--drain-timeout", "inf", "--drain-delay", "2.5", "--access-log"),
        *("--max-connections", str(10**9), "--tenants-file", '/a "b" ; #$x%i\\', "--workers", "2"),
    ),
    "a socket's folder": ("--uds", "/run/prices/http.sock", "--uds-mode", "660"),
}


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed: it is in systemd"
)
@pytest.mark.parametrize("flags", UNITS.values(), ids=list(UNITS))
def test_systemd_takes_the_unit(flags, tmp_path):
    verified(tmp_path, {"prices.service": (*SYSTEMD, *flags)})


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed: it is in systemd"
)
@pytest.mark.parametrize("flags", [("--host", "::"), ("--uds", "/run/prices/http.sock", "--user", "daemon")])
def test_systemd_takes_the_unit_of_the_socket_and_of_who_gets_it(flags, tmp_path):
    made = {
        "prices.socket": (*SYSTEMD, *flags, "--socket"),
        "prices.service": (*SYSTEMD, *flags, "--by-socket"),
    }
    verified(tmp_path, made)


def verified(folder, units):
    for name, words in units.items():
        status, printed = run(folder, "generate", *words, "--output", str(folder / name))
        assert status == 0, printed
    command = ["systemd-analyze", "verify", "--man=no", *(str(folder / name) for name in units)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # It ends well for a key that it does not know, but says so; of other units it may say what it likes.
    assert done.returncode == 0, done.stderr
    assert str(folder) not in done.stderr, done.stderr


def test_a_unit_with_a_key_that_systemd_does_not_know_would_be_noticed(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: it is in systemd")
    (tmp_path / "odd.service").write_text("[Service]\nExecStart=/bin/true\nTimeoutStop=3\n")
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "odd.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert str(tmp_path) in done.stderr


PODS = {
    "plain": ("--drain-delay", "5"),
    "with everything": (
        *("--replicas", "1", "--port", "9000", "--tls-cert", "/c", "--tls-key", "/k", "--drain-delay", "2.5"),
        *("--tenants-file", '/a "b": #$(HOME)\n- x', "--workers", "2", "--name", "a-b"),
    ),
}


@pytest.mark.parametrize("flags", PODS.values(), ids=list(PODS))
def test_kubernetes_takes_the_objects(flags, tmp_path):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    yaml = pytest.importorskip("yaml")
    made = tmp_path / "made.yaml"
    words = ("k8s", "prices:service", "--image", "example.org/prices:1", *flags, "--output", str(made))
    status, printed = run(tmp_path, "generate", *words)
    assert status == 0, printed
    found = [each for each in yaml.safe_load_all(made.read_text()) if each is not None]
    assert [each["kind"] for each in found] == ["Deployment", "Service", "PodDisruptionBudget"]
    for each in found:
        for version in ("1.25", "1.37"):  # the oldest and the newest that there are schemas of
            kubernetes_validate.validate(each, version, strict=True)
    found[0]["spec"]["template"]["spec"]["terminationGrace"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found[0], "1.37", strict=True)


FILES = {
    "plain": ["--listen", "127.0.0.1:{port}", "--server", "127.0.0.1:8001", "--drain-delay", "2"],
    "many kinds of addresses": [
        *(
            "--listen",
            "[::]:{port}",
            "--server",
            "127.0.0.1:8001",
            "--server",
            "[::1]:8001",
            "--server",
            "localhost:8001",
        ),
        *("--server", "unix:/run/a.sock", "--server", "unix:/run/b c;d{e}#f.sock", "--drain-delay", "2"),
    ],
    "the least": [
        *("--listen", "127.0.0.1:{port}", "--server", "127.0.0.1:8001", "--timeout", "0", "--keepalive-timeout", "0"),
        *("--max-body-bytes", "0", "--max-connections", "1", "--header-timeout", "0.1", "--body-timeout", "0.1"),
        *("--write-timeout", "0.1", "--max-header-bytes", "64", "--max-header-fields", "1", "--max-target-bytes", "1"),
    ],
    "the most": [
        *(
            "--listen",
            "127.0.0.1:{port}",
            "--server",
            "127.0.0.1:8001",
            "--timeout",
            "inf",
            "--keepalive-timeout",
            "inf",
        ),
        *(
            "--max-body-bytes",
            str(10**30),
            "--max-connections",
            str(10**30),
            "--header-timeout",
            "inf",
            "--body-timeout",
            "inf",
        ),
        *("--write-timeout", "inf", "--max-header-bytes", str(10**30), "--max-header-fields", str(10**30)),
        *("--drain-delay", "inf", "--drain-timeout", "inf"),
    ],
    "other statuses": [
        *(
            "--listen",
            "unix:{folder}/front.sock",
            "--server",
            "127.0.0.1:8001",
            "--overload-status",
            "429",
            "--drain-delay",
            "2",
        ),
        *("--unready-when-full", "--health-path", "/health_check", "--timeout", "5"),
    ],
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_program(name)) for name in PROXIES])
@pytest.mark.parametrize("flags", FILES.values(), ids=list(FILES))
@pytest.mark.smoke
def test_the_program_takes_the_file_of_a_proxy(name, flags):
    with open_folder() as folder:
        # nginx listens where the file says also if it only checks it
        flags = [word.replace("{port}", str(free_port())).replace("{folder}", str(folder)) for word in flags]
        status, printed = run(folder, "generate", name, *flags, "--output", str(folder / "made.conf"))
        assert status == 0, printed
        done = subprocess.run(
            check_command(name, folder / "made.conf"), capture_output=True, text=True, timeout=60, **unprivileged()
        )
        assert done.returncode == 0, done.stderr
        assert "[WARNING]" not in done.stderr
