"""What stages count, as `/metrics` shows it: over several workers, one of them killed, and up to a server's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from served import serving

COUNTS = """
import os
import threading

import penstock as ps
from penstock.worker.counting import count_own


class Counts(ps.Stage):
    def setup(self):
        ps.count("set_up")

    def predict(self, x: int) -> int:
        if x == -1:
            for i in range(1001):
                ps.count("users", user=i)
            return 0
        ps.count("hits", parity="odd" if x % 2 else "even")
        count_own("rows_fetched", x, table="user")
        thread = threading.Thread(target=ps.count, args=("threads",))
        thread.start()
        thread.join()
        if os.fork() == 0:
            ps.count("forks")
            os._exit(0)
        os.wait()
        return os.getpid()


service = ps.Service(ps.stage(Counts, workers=2), name="counts")
"""


def total(server, name, **labels):
    return server.metric(name, service="counts", stage="Counts", **labels)


@pytest.mark.smoke
def test_counts_of_all_workers_are_shown_and_stay_when_one_is_killed(tmp_path):
    with serving(tmp_path, source=COUNTS) as server:
        pids = {server.http.post("/predict", json=x).json() for x in range(20)}
        shown = {
            ("penstock_user_hits_total", "parity", "odd"): 10,
            ("penstock_user_hits_total", "parity", "even"): 10,
            ("penstock_rows_fetched_total", "table", "user"): sum(range(20)),
        }
        for (name, label, value), number in shown.items():
            server.until(lambda: total(server, name, **{label: value}) == number, name)  # noqa: B023
        server.until(lambda: total(server, "penstock_user_set_up_total") == 2, "both setups")
        server.until(lambda: total(server, "penstock_user_threads_total") == 20, "the threads")
        assert "penstock_user_forks" not in server.http.get("/metrics").text
        os.kill(pids.pop(), signal.SIGKILL)
        server.until(lambda: total(server, "penstock_user_set_up_total") == 3, "the worker that follows")
        for (name, label, value), number in shown.items():
            assert total(server, name, **{label: value}) == number


def test_of_1001_series_a_thousand_are_shown_and_the_log_says_so_once(tmp_path):
    with serving(tmp_path, source=COUNTS) as server:
        for _ in range(4):
            server.http.post("/predict", json=-1)
        server.until(lambda: "more than 1000 counter series" in server.output, "the line")
        server.until(lambda: server.http.get("/metrics").text.count("penstock_user_users_total{") == 999, "the series")
        server.until(lambda: total(server, "penstock_user_set_up_total") == 2, "what is counted on")
        assert server.output.count("more than 1000 counter series") == 1


IN_PROCESS = """
import asyncio
import sys

import penstock as ps


class First(ps.Stage):
    def predict(self, x: int) -> int:
        ps.count("hits", x)
        return x

    def teardown(self):
        ps.count("ended")


class Second(First):
    def predict(self, x: int) -> int:
        ps.count("hits", x, by="second")
        return x


async def main():
    service = ps.Service(First, Second, inline=sys.argv[1] == "inline")
    async with service:
        stages = service.engine.stages
        await service.predict(2)
        await service.predict(3)
    print([sorted(stage.counters.series.items()) for stage in stages])


if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["inline", "processes"])
def test_workers_that_stop_in_order_tell_of_all_that_they_have_counted(tmp_path, kind):
    (tmp_path / "model.py").write_text(IN_PROCESS)
    command = [sys.executable, "model.py", kind]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    expected = [
        [(("user_ended", ()), 1.0), (("user_hits", ()), 5.0)],
        [(("user_ended", ()), 1.0), (("user_hits", (("by", "second"),)), 5.0)],
    ]
    assert done.stdout == f"{expected}\n", done.stderr
