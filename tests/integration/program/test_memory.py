"""A server that leaves memory free, on a machine whose memory the test writes into files."""

from __future__ import annotations

from served import run, serving, write_module

SOURCE = """
from pathlib import Path

import penstock as ps
from penstock.hosting import available_memory

available_memory.HERE = available_memory.MemoryFiles(Path("machine"), Path("machine/cgroup"))


def double(x: int) -> int:
    return x * 2


service = ps.Service(double, name="double")
"""
PLENTY = 10**12


def write(folder, taken):
    """The machine's one cgroup may take 10 TB, and has taken so much."""
    (folder / "machine/cgroup/own").mkdir(parents=True, exist_ok=True)
    (folder / "machine/self").mkdir(exist_ok=True)
    (folder / "machine/self/cgroup").write_text("0::/own\n")
    (folder / "machine/cgroup/own/memory.max").write_text(f"{10 * PLENTY}\n")
    whole = folder / "machine/cgroup/own/memory.new"
    whole.write_text(f"{taken}\n")
    whole.rename(folder / "machine/cgroup/own/memory.current")


def test_newcomers_are_refused_until_memory_is_back_and_the_service_stays_ready(tmp_path):
    write(tmp_path, 10 * PLENTY)
    with serving(tmp_path, "--min-free-memory", str(PLENTY), source=SOURCE, services=("service",)) as server:
        refused = server.http.post("/predict", json=1)
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:penstock:problem:overloaded")
        assert refused.headers["retry-after"]
        ready = server.http.get("/readyz")
        assert ready.status_code == 200
        assert "busy" in ready.text
        assert server.metric("penstock_memory_available_bytes") == 0
        write(tmp_path, 5)
        server.until(lambda: server.http.post("/predict", json=4).status_code == 200, "memory to be seen again")
        assert server.http.post("/predict", json=4).json() == 8
        assert "ready" in server.http.get("/readyz").text
        assert server.metric("penstock_memory_available_bytes") == 10 * PLENTY - 5
        write(tmp_path, 10 * PLENTY)
        server.until(lambda: server.http.post("/predict", json=4).status_code == 503, "memory to be short again")
    assert "less than min_free_memory" in server.output


def test_a_machine_that_does_not_tell_its_memory_refuses_the_option(tmp_path):
    module = write_module(tmp_path, SOURCE)
    status, output = run(tmp_path, "serve", f"{module}:service", "--port", "0", "--min-free-memory", "1")
    assert status != 0
    assert "min_free_memory needs a memory limit of a cgroup" in output
    assert "Traceback" not in output
