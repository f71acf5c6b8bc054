"""A server that may open few files: clients must not take those that its workers need."""

from __future__ import annotations

import contextlib
import socket

import pytest
from processes import descriptors
from served import ORDERS, serving

FILES = 128
LIMITED = f"import resource\n\nresource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))\n"


@pytest.fixture
def frugal(tmp_path):
    """The usual services, in processes that limit themselves; `penstock serve` imports the module before it listens."""
    source = ORDERS.read_text().replace("import os\n", f"import os\n{LIMITED}", 1)
    with serving(tmp_path, source=source) as server:
        yield server


def test_idle_clients_leave_files_for_a_worker_that_is_started_again(frugal):
    room = int(frugal.wait_for(rf"hard limit of {FILES} open files allows (\d+) connections")[1])
    assert 16 <= room < FILES - 64
    assert frugal.metric("penstock_connections_limit") == room
    frugal.http.close()
    client = frugal.wire()
    client.post("/predict", {}).answer()
    idle = [frugal.wire() for _ in range(FILES)]  # more than there is room for, more than may be told so
    frugal.until(lambda: descriptors(frugal.pid) >= room)
    assert client.post("/predict", {"do": "die once", "value": 3}).answer().body == b"3.0"
    assert len(idle) == FILES
    assert descriptors(frugal.pid) < FILES


def test_sockets_that_say_nothing_to_a_tls_port_stop_no_probe(tmp_path, pair):
    source = ORDERS.read_text().replace("import os\n", f"import os\n{LIMITED}", 1)
    with serving(tmp_path, *pair.options, source=source) as server, contextlib.ExitStack() as opened:
        for _ in range(4 * FILES):
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        for path in ("/livez", "/readyz"):
            assert server.client().get(path).status_code == 200
        assert server.client().post("/predict", json={"value": 3}).json() == 3.0
        assert descriptors(server.pid) < FILES
