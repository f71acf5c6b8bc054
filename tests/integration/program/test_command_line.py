"""The command line: options and their variables, and one clear sentence for whatever cannot be."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec

import pytest
from served import PENSTOCK, START_LIMIT, Program, run
from spoken import said_by, spoken

import penstock as ps
from penstock.cli.main import command_arguments, load_services
from penstock.cli.options import server_options
from penstock.config import ServerOptions

SERVE = ("serve", "orders:service", "--port", "0")


@pytest.mark.smoke
def test_variables_set_options_and_flags_win_over_them(serve):
    variables = {
        "PENSTOCK_MAX_BODY_BYTES": "100", "PENSTOCK_MAX_IN_FLIGHT": "5", "PENSTOCK_TIMEOUT": "0.2",
        "PENSTOCK_ACCESS_LOG": "true", "PENSTOCK_PORT": "1",
    }  # fmt: skip
    server = serve("--max-body-bytes", "200", env=variables)
    assert server.wire().post("/predict", b"x" * 150).answer().status == 422
    assert server.wire().post("/predict", b"x" * 201).answer().status == 413
    assert server.wire().post("/predict", {"do": "nap", "seconds": 1}).answer().status == 504
    assert server.metric("penstock_items_in_flight_limit") == 5
    server.wait_for("POST /predict 413")


def options_read(folder, *arguments, env):
    """The options of a server that these words and variables would start."""
    found = []

    def read():
        found.append(server_options(command_arguments([*SERVE, *arguments]), os.environ))
        return 0

    assert said_by(read, folder, env) == (0, "", "")
    return found[0]


def test_a_flag_can_turn_off_what_a_variable_turned_on(tmp_path):
    on = {"PENSTOCK_ACCESS_LOG": "1"}
    assert options_read(tmp_path, env=on).access_log
    assert not options_read(tmp_path, "--no-access-log", env=on).access_log


def test_hosts_of_the_variable_stand_unless_the_flag_is_given(tmp_path):
    two = {"PENSTOCK_HOST": "127.0.0.2,127.0.0.3"}
    assert options_read(tmp_path, env=two).host == ("127.0.0.2", "127.0.0.3")
    flags = ("--host", "127.0.0.3,127.0.0.1", "--host", "127.0.0.2")
    assert options_read(tmp_path, *flags, env=two).host == ("127.0.0.3", "127.0.0.1", "127.0.0.2")


def test_an_empty_variable_opens_nothing_to_everybody(tmp_path):
    empty = {"PENSTOCK_HOST": "", "PENSTOCK_UDS": "", "PENSTOCK_API_KEY_FILE": ""}
    assert options_read(tmp_path, env=empty) == options_read(tmp_path, env={}) == ServerOptions(port=0)


def test_a_variable_that_is_misspelt_is_told_at_the_start_in_the_format_of_the_log(serve, log_lines):
    server = serve("--log-format", "json", env={"PENSTOCK_MAX_IN_FLIGH": "5"})
    first, second, *_ = [line["message"] for line in log_lines(server)]
    assert first.startswith(f"version {ps.__version__} (")
    assert second == "warning: unknown variable PENSTOCK_MAX_IN_FLIGH: did you mean PENSTOCK_MAX_IN_FLIGHT?"


AUTHOR = """
import penstock as ps

def same(x: float) -> float:
    return x

service = ps.Service(same, name="mine", max_in_flight=7, timeout=33.0)
"""


@pytest.mark.parametrize(
    ("arguments", "env", "limit"),
    [((), {}, 7), (("--max-in-flight", "9"), {}, 9), ((), {"PENSTOCK_MAX_IN_FLIGHT": "8"}, 8)],
)
def test_what_the_author_wrote_holds_unless_it_is_overridden(module, arguments, env, limit):
    def load():
        (service,) = load_services(command_arguments(["serve", "model:service", *arguments]))
        assert service.options.timeout == 33.0
        return service.options.max_in_flight

    assert said_by(load, module(AUTHOR), env) == (limit, "", "")


def says(output, words):
    """One sentence, and no traceback."""
    assert "Traceback" not in output
    assert any(words in line for line in output.splitlines() if line.startswith("penstock: "))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--max-in-flight", "many"), "--max-in-flight (or PENSTOCK_MAX_IN_FLIGHT): expected an integer, got 'many'"),
        (("--timeout", "nan"), "--timeout (or PENSTOCK_TIMEOUT) must be a number, got nan"),
        (("--log-format", "xml"), "--log-format (or PENSTOCK_LOG_FORMAT) must be one of 'text', 'json', got 'xml'"),
        (("--tls-cert", "cert.pem"), "tls_cert and tls_key must be set together"),
        (("--uds-mode", "rw"), "--uds-mode (or PENSTOCK_UDS_MODE): expected an octal number, such as 660, got 'rw'"),
        (("--api-key-file", ""), "--api-key-file (or PENSTOCK_API_KEY_FILE) must not be empty"),
    ],
)
def test_a_value_that_an_option_can_never_have_is_a_sentence_and_exit_2(module, options, words):
    found = spoken(module("raise SystemExit('nothing is imported for a wrong call')"), *SERVE, *options)
    assert found.status == 2
    says(found.refusal, words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tls-cert", "cert.pem", "--tls-key", "key.pem"), "cannot be used"),
        (("--api-key-file", "nowhere"), "api_key_file 'nowhere' cannot be read"),
        (("--host", "no.such.host.invalid"), "host 'no.such.host.invalid' is not an address to listen on"),
        (("--uds", "/no/such/folder/socket"), "cannot listen on /no/such/folder/socket"),
    ],
)
def test_an_option_that_does_not_fit_this_machine_is_a_sentence_and_exit_1(module, options, words):
    found = spoken(module(), *SERVE, *options)
    assert found.status == 1
    says(found.refusal, words)


def test_a_value_that_a_variable_can_never_have_is_a_sentence_and_exit_2(module):
    found = spoken(module(), *SERVE, env={"PENSTOCK_KEEPALIVE_TIMEOUT": "long"})
    assert found.status == 2
    says(found.refusal, "--keepalive-timeout (or PENSTOCK_KEEPALIVE_TIMEOUT): expected a number, got 'long'")


def test_a_flag_that_does_not_exist_is_exit_2(module):
    found = spoken(module(), *SERVE, "--no-such-flag")
    assert found.status == 2
    assert "unrecognized arguments: --no-such-flag" in found.refusal


@pytest.mark.smoke
def test_the_program_refuses_a_wrong_call_on_standard_error_with_its_exit_status(module):
    asked = [*PENSTOCK, *SERVE, "--max-in-flight", "0"]
    done = subprocess.run(asked, cwd=module(), capture_output=True, text=True, timeout=START_LIMIT, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "usage: penstock serve [options] module:service [module:service ...]",
        "penstock: --max-in-flight (or PENSTOCK_MAX_IN_FLIGHT) must be at least 1, got 0",
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("orders", "services: choose from orders:service, orders:two_workers, "),
        ("orders.deep:service", "there is no module 'orders.deep'"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_service_that_is_not_there_is_a_sentence_and_exit_1(module, command, name, words):
    found = spoken(module(), command, name)
    assert found.status == 1
    says(found.refusal, words)


def test_a_current_folder_that_was_removed_is_a_sentence_and_exit_1(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    remove = ("sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh")
    program = Program(gone, *remove, *PENSTOCK, "serve", "orders:service")
    try:
        assert program.wait() == 1
    finally:
        program.destroy()
    says(program.output, "cannot use the current directory: No such file or directory; change to another one")


def test_two_services_of_one_name_are_a_sentence_and_exit_1(module):
    found = spoken(module(), "serve", "orders:service", "orders:service", "--port", "0")
    assert found.status == 1
    says(found.refusal, "different names")


@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_service_that_cannot_be_is_told_with_its_line(module, command):
    found = spoken(module(AUTHOR.replace("timeout=33.0", "timout=33.0")), command, "model:service")
    assert found.status == 1
    says(found.refusal, "service 'mine': there is no 'timout' here: did you mean `timeout=...`? (")
    says(found.refusal, "model.py, line 7)")


BROKEN_SETUP = """
import penstock as ps

class Broken(ps.Stage):
    def setup(self, path: str) -> None:
        raise FileNotFoundError(f"no weights at {path}")

    def predict(self, x: float) -> float:
        return x

service = ps.Service(ps.stage(Broken, setup={"path": "/weights"}, workers=2), name="broken")
"""


def test_a_setup_that_raises_ends_the_command_with_the_remote_traceback(module):
    status, output = run(module(BROKEN_SETUP), "serve", "model:service", "--port", "0")
    assert status == 1
    assert "stage 'Broken' could not be set up: FileNotFoundError: no weights at /weights" in output
    assert 'model.py", line 6, in setup' in output
    assert "FileNotFoundError: no weights at /weights" in output
    assert "ready on" not in output
    assert "penstock/" not in output, "our own frames tell the user nothing"


def written_as_json(folder, *arguments):
    """The log lines of a server that ends by an error; every line it writes must be one."""
    status, output = run(folder, "serve", *arguments, "--port", "0", "--log-format", "json")
    assert status == 1
    return [json.loads(line) for line in output.splitlines()]


def test_with_json_lines_a_setup_that_raises_is_one_of_them(module):
    line = written_as_json(module(BROKEN_SETUP), "model:service")[-1]
    assert (line["level"], line["logger"], line["error"]) == ("error", "penstock.server", "StartFailed")
    _, _, message = line["message"].partition(" of ")  # whichever of the two workers was first
    assert message == "stage 'Broken' could not be set up: FileNotFoundError: no weights at /weights"
    assert 'model.py", line 6, in setup' in line["traceback"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("orders:servce",), 1, "orders has no 'servce'"),
        (
            ("orders:service", "--max-in-flight", "0"),
            2,
            "--max-in-flight (or PENSTOCK_MAX_IN_FLIGHT) must be at least 1, got 0",
        ),
    ],
)
def test_with_json_lines_what_cannot_be_is_the_only_one(module, arguments, status, message):
    found = spoken(module(), "serve", *arguments, "--log-format", "json")
    line = json.loads(found.refusal)
    assert (found.status, line["error"]) == (status, "ConfigError")
    assert message in line["message"]


UNGUARDED = """
import penstock as ps

def same(x: float) -> float:
    return x

service = ps.Service(same, name="mine")
service.serve(port=0)
"""


def test_a_script_serves_itself_if_it_is_guarded_and_is_told_to_be_otherwise(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    program = Program(tmp_path, sys.executable, "script.py")
    try:
        assert program.wait() == 1
    finally:
        program.destroy()
    assert 'if __name__ == "__main__":' in program.output
    script.write_text(UNGUARDED.replace("service.serve", 'if __name__ == "__main__":\n    service.serve'))
    program = Program(tmp_path, sys.executable, "script.py")
    try:
        program.wait_for(r"ready on http://127\.0\.0\.1:\d+")
        program.signal(15)
        assert program.wait() == 0
    finally:
        program.destroy()


def test_help_names_every_option_with_its_default_and_its_variable(tmp_path):
    status, output, error = spoken(tmp_path, "serve", "--help", env={"COLUMNS": "200"})
    assert (status, error) == (0, "")
    for name, default in (
        ("max-in-flight", "1024"),
        ("drain-timeout", "30.0"),
        ("uds-mode", "600"),
        ("max-body-bytes", "16777216"),
    ):
        assert f"--{name}" in output
        assert f"(default {default}; PENSTOCK_{name.replace('-', '_').upper()})" in " ".join(output.split())


# -- check ----------------------------------------------------------------------------------------------------------

CHECKED = """
from typing import Any
import msgspec
import penstock as ps

class Point(msgspec.Struct):
    x: float

class Good(ps.Stage):
    batch = ps.Batch(max_size=4)
    examples = [Point(1.0), Point(2.0)]
    def predict(self, ps: list[Point]) -> list[float]:
        return [p.x for p in ps]

class WrongType(ps.Stage):
    examples = [1.0]
    def predict(self, x: float) -> float:
        return str(x)

class WrongLength(ps.Stage):
    batch = ps.Batch(max_size=4)
    examples = [1.0]
    def predict(self, xs: list[float]) -> list[float]:
        return xs + xs

class Unpicklable(ps.Stage):
    examples = [1.0]
    def predict(self, x: float) -> Any:
        return lambda: x

class After(ps.Stage):
    def predict(self, f: Any) -> float:
        return f()

class BadExample(ps.Stage):
    examples = ["one"]
    def predict(self, x: float) -> float:
        return 1.0

class Raises(ps.Stage):
    examples = [0.0]
    def predict(self, x: float) -> float:
        return 1 / x

class Unanswerable(ps.Stage):
    examples = [1.0]
    def predict(self, x: float) -> Any:
        return object()

class NoExamples(ps.Stage):
    def predict(self, x: float) -> float:
        return x

class Nan(ps.Stage):
    examples = [1.0]
    def predict(self, x: float) -> float:
        return float("nan")

class Inner(ps.Stage):
    def predict(self, x: float) -> float:
        return x

class Waves(ps.Stage):
    examples = [1j]
    def predict(self, x: complex) -> float:
        return abs(x)

class Lists(ps.Stage):
    examples = [1.0]
    def predict(self, xs: float) -> Any:
        return [x for x in xs]

def local():
    class Local(ps.Stage):
        examples = [1.0]
        def predict(self, x: float) -> float:
            return x
    return Local

class BadSetup(ps.Stage):
    def setup(self) -> None:
        raise OSError("no disk")
    def predict(self, x: float) -> float:
        return x

class HeldLock(ps.Stage):
    def setup(self, lock) -> None:
        pass
    def predict(self, x: float) -> float:
        return x

good = ps.Service(Good, name="good")
wrong_type = ps.Service(WrongType, name="wrong_type")
wrong_length = ps.Service(WrongLength, name="wrong_length")
unpicklable = ps.Service(Unpicklable, After, name="unpicklable")
bad_example = ps.Service(BadExample, name="bad_example")
raises = ps.Service(Raises, name="raises")
unanswerable = ps.Service(Unanswerable, name="unanswerable")
no_examples = ps.Service(NoExamples, name="no_examples")
nan, behind = ps.Service(Nan, name="nan"), ps.Service(Inner, Nan, name="behind")
lists, waves = ps.Service(Lists, name="lists"), ps.Service(Waves, name="waves")
unimportable = ps.Service(local(), name="unimportable")
bad_setup = ps.Service(BadSetup, name="bad_setup")
"""


def checked(folder, name):
    status, output, _ = spoken(folder, "check", f"model:{name}", env={"COLUMNS": "400"})
    return status, " ".join(output.split())


def test_check_says_that_a_good_service_is_well(module):
    status, output = checked(module(CHECKED), "good")
    assert status == 0
    assert "0 failed" in output
    assert "examples[1]" in output


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wrong_type", "expected `float`, got `str`"),
        ("wrong_length", "predict returned 2 results for 1 items"),
        ("unpicklable", "Unpicklable"),
        ("bad_example", "expected `float`, got `str`"),
        ("raises", "ZeroDivisionError"),
        ("unanswerable", "object"),
        ("waves", "`complex` cannot be the input type of a service: a request cannot contain `complex`"),
        ("lists", "this stage has no batch policy, so predict receives one item"),
        ("unimportable", "defined inside a function"),
        ("bad_setup", "no disk"),
    ],
)
def test_check_says_what_is_wrong_and_exits_1(module, name, words):
    status, output = checked(module(CHECKED), name)
    assert status == 1
    assert words.lower() in output.lower()
    assert "0 failed" not in output


NAN = "the result has NaN or infinity at `$`, which JSON does not support; set nan_as_null=True to write null"


def test_check_warns_of_a_format_that_cannot_carry_a_result_where_another_can(module):
    status, output = checked(module(CHECKED), "nan")
    assert status == 0
    assert f"warning │ examples[0] as JSON, answered in JSON │ stage Nan: {NAN}" in output
    assert "0 failed, 5 ok, 3 with a warning" in output


def test_check_warns_of_what_only_a_later_stages_examples_show(module):
    status, output = checked(module(CHECKED), "behind")
    assert status == 0
    words = f"stage 'Nan': cannot write the result in every format: examples[0]: {NAN}"
    assert f"warning │ setup and warm-up │ {words}" in output


def test_a_server_does_not_start_where_no_request_can_bring_an_item(module):
    found = spoken(module(CHECKED), "serve", "model:waves", "--port", "0")
    assert found.status == 1
    says(found.refusal, "`complex` cannot be the input type of a service: a request cannot contain `complex`")


TENSORS = """
import penstock as ps

class Tensor:
    def tolist(self):
        return [1.0]

    def numpy(self):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad")

class Net(ps.Stage):
    batch = ps.Batch(max_size=2)
    examples = [1.0]

    def predict(self, xs: list[float]):
        return [Tensor() for _ in xs]

service = ps.Service(Net, name="tensors")
"""
NO_TENSOR = (
    "an object of type `model.Tensor` cannot be written as JSON or MessagePack; "
    "let the stage return its `.tolist()` or `.numpy()`"
)


def test_a_server_does_not_start_where_only_a_call_in_process_could_get_a_result(module):
    status, output = run(module(TENSORS), "serve", "model:service", "--port", "0")
    assert status == 1
    assert NO_TENSOR in output


def test_check_says_that_without_examples_nothing_was_run(module):
    status, output = checked(module(CHECKED), "no_examples")
    assert status == 0
    assert "skipped" in output
    assert "examples = [...]" in output


def test_of_several_services_one_that_cannot_start_ends_the_others(module):
    folder = module(BROKEN_SETUP + "fine = ps.Service(abs, name='fine')\n")
    status, output = run(folder, "serve", "model:fine", "model:service", "--port", "0")
    assert status == 1
    assert "no weights at /weights" in output
    assert "Group" not in output


def test_the_version_and_the_first_line_say_which_build_runs_on_what(serve):
    compiled = find_spec("penstock.core.item").origin.endswith(".so")
    libraries = ", ".join(f"{name} {version(name)}" for name in ("uvloop", "httptools", "msgspec"))
    build = "compiled" if compiled else "plain Python"
    words = f"{ps.__version__} ({build}; Python {platform.python_version()}, {libraries})"
    program = subprocess.run([*PENSTOCK, "--version"], capture_output=True, text=True, check=True, timeout=START_LIMIT)
    assert program.stdout == f"penstock {words}\n"
    server = serve()
    assert server.output.splitlines()[0] == f"penstock: version {words}"
    assert server.health()["compiled"] is compiled
    assert server.metric("penstock_info", compiled="true" if compiled else "false") == 1


def test_a_start_reads_no_versions_of_libraries_and_loads_nothing_of_what_draws_tables():
    asked = (
        "import sys; from penstock.cli.main import _parser; _parser(); print('importlib.metadata' in sys.modules);"
        "import penstock.cli.work, penstock.server.serve; print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "False\nFalse\n"
