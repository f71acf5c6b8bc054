"""What a stage logs: through `logging`, as warnings; with and without handlers of the user's."""

from __future__ import annotations

import json
import re
import socket
import sys

import pytest
from served import Program, serving, write_module

LOGGING = """
import logging
import logging.config
import warnings

import penstock as ps

log = logging.getLogger("my.model")
log.info("imported")
{configure}

class Model(ps.Stage):
    batch = ps.Batch(max_size=4)

    def setup(self):
        logging.getLogger("my.library").addHandler(logging.NullHandler())
        log.info("set up")
        log.debug("in detail")

    def predict(self, xs: list[float]) -> list[float]:
        log.info("predicting %s", xs)
        logging.getLogger("my.library").warning("careful")
        warnings.warn("old model", stacklevel=1)
        log.info("with extras", extra={{"stage": "of a rocket", "fuel": 0.5}})
        return xs

service = ps.Service(Model, name="models")
"""
BASIC = 'logging.basicConfig(format="theirs %(name)s %(message)s %(service)s %(stage)s %(worker)s")'
DICT = """
logging.config.dictConfig({"version": 1, "root": {"level": "INFO"}})
"""


def source(configure=""):
    return LOGGING.format(configure=configure)


def by_message(lines):
    return {line["message"]: line for line in lines}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """All that one server has written in JSON and another as text; the first one's own id for a request."""
    written, named = {}, {}
    for log_format in ("json", "text"):
        folder = tmp_path_factory.mktemp(log_format)
        with serving(folder, "--log-format", log_format, source=source()) as server:
            server.wire().post("/predict", 1.0, X_Request_ID="one").answer()
            server.wire().post("/batch", [2.0, 3.0], X_Request_ID="two").answer()
            named[log_format] = server.wire().post("/predict", 4.0).answer().headers["x-request-id"]
        written[log_format] = server.output
    return written["json"], written["text"], named["json"]


@pytest.fixture(scope="module")
def records(told):
    """What the stage has logged in JSON, a line each."""
    return [line for line in map(json.loads, told[0].splitlines()) if "worker" in line]


def test_a_record_of_a_stage_is_an_object_that_says_where_it_comes_from(records):
    lines = records
    assert all(line["service"] == "models" and line["worker"] == 0 for line in lines)
    found = by_message(lines)
    assert {"imported", "set up", "predicting [1.0]", "careful", "with extras"} <= found.keys()
    assert (found["set up"]["logger"], found["set up"]["level"], found["set up"]["stage"]) == (
        "my.model",
        "info",
        "Model",
    )
    (warning,) = [line for line in lines if line["logger"] == "py.warnings"]
    assert "UserWarning: old model" in warning["message"]
    assert warning["level"] == "warning"
    assert (found["with extras"]["stage"], found["with extras"]["fuel"]) == ("of a rocket", 0.5)
    assert "in detail" not in found


@pytest.mark.smoke
def test_a_record_has_the_ids_of_the_requests_that_its_call_works_for(told, records):
    found = by_message(records)
    assert found["predicting [1.0]"]["request_ids"] == ["one"]
    assert found["predicting [2.0, 3.0]"]["request_ids"] == ["two:0", "two:1"]
    (given,) = found["predicting [4.0]"]["request_ids"]
    assert given == told[2]
    assert found["set up"]["request_ids"] == []


def test_a_text_line_names_the_requests(told):
    assert "INFO my.model [Model/0 one]: predicting [1.0]\n" in told[1]
    assert "INFO my.model [Model/0 two:0, two:1]: predicting [2.0, 3.0]\n" in told[1]


def test_threads_of_a_server_log_as_its_workers_do(serve, log_lines):
    inline = source().replace('name="models"', 'name="models", inline=True')
    server = serve("--log-format", "json", source=inline)
    server.wire().post("/predict", 1.0, X_Request_ID="one").answer()
    server.hang_up()
    server.stop()
    found = by_message(log_lines(server))
    assert "worker" not in found["imported"]
    predicting = found["predicting [1.0]"]
    assert (predicting["stage"], predicting["worker"], predicting["request_ids"]) == ("Model", 0, ["one"])


def test_a_text_line_of_a_stage_has_its_time_and_its_worker(told):
    moment = r"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "
    for line in ("INFO my.model", "WARNING my.library"):
        assert re.search(moment + line + r" \[Model/0.*\]: (set up|careful)$", told[1])
    assert re.search(moment + r"WARNING py.warnings \[Model/0.*\]: .*UserWarning: old model$", told[1])


def test_a_logger_has_the_level_it_is_given(serve):
    server = serve("--log-level", "error,my.model=debug", source=source())
    server.wire().post("/predict", 1.0).answer()
    server.hang_up()
    server.stop()
    assert "in detail" in server.output
    for other in ("careful", "old model", "is ready"):
        assert other not in server.output


def test_the_highest_level_leaves_nothing_of_these(serve):
    server = serve("--log-level", "critical", source=source())
    server.wire().post("/predict", 1.0).answer()
    server.hang_up()
    server.stop()
    assert not re.search("my\\.|warning|is ready", server.output)


def test_handlers_of_the_user_stand_and_nothing_comes_twice(serve):
    server = serve(source=source(BASIC))
    server.wire().post("/predict", 1.0).answer()
    server.hang_up()
    server.stop()
    assert server.output.count("predicting") == 1
    assert server.output.count("careful") == 1
    assert "theirs my.model predicting [1.0] models Model 0\n" in server.output
    assert "theirs my.model with extras models of a rocket 0\n" in server.output


def test_a_named_level_outlasts_a_configuration_that_silences_loggers(serve):
    server = serve("--log-level", "my.model=debug", source=source(DICT))
    server.wire().post("/predict", 1.0).answer()
    server.wait_for(r"my\.model \[Model/0\]: in detail")
    server.wait_for(r"my\.model \[Model/0.*\]: predicting \[1\.0\]")


def test_a_configuration_that_disables_loggers_leaves_those_of_the_server(serve, log_lines):
    server = serve("--log-format", "json", source=source(DICT))
    server.hang_up()
    server.stop()
    words = [line["message"] for line in log_lines(server)]
    assert any(each.startswith("ready on") for each in words)
    assert words[-1] == "stopped"


PRINTING = """
import json
import os
import subprocess
import sys

import penstock as ps

print("imported")

class Printer(ps.Stage):
    def setup(self):
        sys.stderr.write("loading ")
        sys.stderr.flush()
        sys.stderr.write("weights\\n")

    def predict(self, x: int) -> int:
        print("two\\nlines", x)
        print("an error", file=sys.stderr)
        print(json.dumps({"level": "info", "event": "theirs"}))
        sys.stdout.buffer.write(b"bytes\\n")
        child = os.fork()
        if child == 0:
            print("from", "a", "fork")
            os._exit(0)
        os.waitpid(child, 0)
        print("x" * 100, flush=True)
        return x

    def teardown(self):
        print("without an end", end="")

service = ps.Service(Printer)
"""


@pytest.mark.smoke
def test_what_a_stage_prints_is_an_object_a_line(serve, log_lines):
    server = serve("--log-format", "json", source=PRINTING)
    server.wire().post("/predict", 1, X_Request_ID="mine").answer()
    server.hang_up()
    server.stop()
    lines = log_lines(server)
    (of_server,) = [line for line in lines if line["level"] == "stdout" and "worker" not in line]
    assert of_server["message"] == "imported"  # the server imports it too
    ours = [line for line in lines if line.keys() & {"worker", "event"}]
    printed = {line.get("message", line.get("event")): line for line in ours}
    stdout = {"imported", "two", "lines 1", "bytes", "from a fork", "x" * 100, "without an end"}
    assert {words for words, line in printed.items() if line["level"] == "stdout"} == stdout
    assert {words for words, line in printed.items() if line["level"] == "stderr"} == {"loading weights", "an error"}
    assert printed["theirs"] == {"level": "info", "event": "theirs"}
    assert printed["lines 1"]["request_ids"] == ["mine"]
    assert (printed["lines 1"]["stage"], printed["lines 1"]["worker"]) == ("Printer", 0)
    assert printed["imported"]["request_ids"] == []


UNENDED = """
import sys

import penstock as ps

class Printer(ps.Stage):
    def predict(self, x: int) -> int:
        print("doing", x, end=" ... ")
        if x == 2:
            sys.stdout.flush()
        if x == 3:
            print("done")
        return x

service = ps.Service(Printer)
"""


@pytest.mark.parametrize("inline", [False, True], ids=["worker", "inline"])
def test_what_a_call_prints_without_an_end_is_an_object_of_that_call(serve, log_lines, inline):
    server = serve(
        *("--log-format", "json"), source=UNENDED.replace("(Printer)", "(Printer, inline=True)") if inline else UNENDED
    )
    for x in (1, 2, 3, 4):
        server.wire().post("/predict", x, X_Request_ID=f"r{x}").answer()
    server.hang_up()
    server.stop()
    printed = [(line["message"], line["request_ids"]) for line in log_lines(server) if line["level"] == "stdout"]
    assert printed == [
        ("doing 1 ... ", ["r1"]),
        ("doing 2 ... ", ["r2"]),
        ("doing 3 ... done", ["r3"]),
        ("doing 4 ... ", ["r4"]),
    ]


def test_in_text_what_a_stage_prints_stays_as_it_is(serve):
    server = serve(source=PRINTING)
    server.wire().post("/predict", 1).answer()
    server.wait_for(r"(?m)^lines 1$")
    server.wait_for(r"(?m)^an error$")


IN_A_PROGRAM = """
import penstock as ps

def same(x: float) -> float:
    return x

if __name__ == "__main__":
    ps.Service(same).serve(port=0, log_format="json")
"""


def test_a_program_that_serves_with_json_logs_writes_nothing_but_objects(tmp_path):
    write_module(tmp_path, IN_A_PROGRAM, "program")
    output = Program(tmp_path, sys.executable, "program.py").serve_and_stop()
    lines = [json.loads(line) for line in output.splitlines()]
    (ready,) = [line for line in lines if line["message"].startswith("ready on http://127.0.0.1:")]
    assert (ready["logger"], ready["level"]) == ("penstock.server", "info")


UNREADABLE = """
import os, sys
read, write = os.pipe()
os.dup2(write, 1)
os.close(read)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def redirected(streams):
    """A command that runs another with these streams."""
    return ("sh", "-c", f'exec "$@" {streams}', "sh")


def listens(path):
    """Whether somebody does: the socket file is there before."""
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


@pytest.mark.parametrize(
    ("wrapper", "log_format"),
    [
        (redirected(">&- 2>&-"), "text"),
        (redirected(">/dev/full 2>&1"), "json"),
        ((sys.executable, "-c", UNREADABLE), "text"),
    ],
)
def test_a_closed_or_full_output_fails_no_item(serve, wrapper, log_format):
    server = serve(
        *("--log-format", log_format),
        source=PRINTING,
        where=("--uds", "in.sock"),
        ready=False,
        wrapper=wrapper,
    )
    path = server.folder / "in.sock"
    server.address = f"unix:{path}"
    server.until(lambda: listens(path) and server.http.get("/readyz").status_code == 200)
    for n in range(5):
        assert server.http.post("/predict", json=n).json() == n
