"""An old name is met by an error that says the new one: an argument, a flag, a variable, a command, a name.

Each test goes over the whole table.
"""

import functools
import importlib
import inspect

import pytest

import penstock as ps
from penstock.cli.main import command_arguments
from penstock.cli.options import VARIABLES, unused_variables
from penstock.client import AsyncClient, AsyncClientJobs, Client, ClientJobs
from penstock.config import ArtifactOptions
from penstock.errors import ConfigError
from penstock.jobs import AsyncJobQueue, JobQueue, connect, connect_async
from penstock.jobs.work_options import QueueOptions, WorkOptions
from penstock.option_fields import environment_name, flag_name
from penstock.spelling import RENAMED

COMMANDS = [name for name in RENAMED if " " in name]
NAMES = [name for name in RENAMED if "." in name]
OPTIONS = [name for name in RENAMED if name not in {*COMMANDS, *NAMES}]
NO_ARGUMENTS = {"faults", "queue", "queue_file"}
"""A flag and a variable, or a variable alone."""

CALLS = [
    *(ps.Batch, ps.ServerOptions, ps.ServiceOptions, ArtifactOptions, QueueOptions, WorkOptions),
    *(ps.stage, ps.remote, ps.Service.stop, ps.Features, ps.export.save, ps.export.load),
    *(ps.training.Run, ps.training.Run.results),
    *(
        getattr(ps.features, name)
        for name in ("Bucketized", "Crossed", "Hashed", "Ids", "Numeric", "Text", "Vocabulary")
    ),
    *(Client, AsyncClient, Client.predict_many, AsyncClient.predict_many),
    *(connect, connect_async),
    *(kind.submit for kind in (JobQueue, AsyncJobQueue, ClientJobs, AsyncClientJobs)),
]
CALLED = [
    *(["serve", "m"], ["consume", "m"], ["check", "m"]),
    *(["jobs", "submit", "1"], ["jobs", "list"], ["jobs", "doctor"]),
    *(["model", "verify", "d"], ["model", "diff", "a", "b"]),
    ["generate", "nginx", "--listen", "127.0.0.1:80", "--server", "127.0.0.1:81"],
]


def begin(call, **arguments):
    found = call(**arguments)
    if inspect.iscoroutine(found):
        found.send(None)


@pytest.mark.parametrize("old", sorted({*OPTIONS} - NO_ARGUMENTS))
def test_an_old_argument_is_told_the_new_one(old):
    now = RENAMED[old]
    having = [call for call in CALLS if now in (names := inspect.signature(call).parameters) and old not in names]
    assert having
    for call in having:
        with pytest.raises(ConfigError) as refused:
            begin(call, **{old: 1})
        assert str(refused.value).endswith(f": there is no {old!r} here: it is `{now}=...` now")


@pytest.mark.parametrize("old", ["drain", "max_queued", "max_gap", "recycle_after"])
def test_an_old_argument_of_another_call_is_told_that_call(old):
    with pytest.raises(ConfigError, match=rf"there is no '{old}' here: it is `.+\(.*{RENAMED[old]}=\.\.\.\)+` now"):
        ps.training.Run("r", **{old: 1})


@functools.cache
def flags_of(*words):
    return command_arguments(words).parser.flags


@pytest.mark.parametrize("old", OPTIONS)
def test_an_old_flag_is_told_the_new_one(old, capsys):
    before, now = flag_name(old), flag_name(RENAMED[old])
    having = [words for words in CALLED if now in flags_of(*words) and before not in flags_of(*words)]
    assert having or environment_name(RENAMED[old]) not in VARIABLES or old == "faults"
    for words in having:
        with pytest.raises(SystemExit) as ended:
            command_arguments([*words, f"{before}=1"])
        assert ended.value.code == 2
        assert capsys.readouterr().err.endswith(f"unrecognized arguments: {before}=1; {before} is {now} now\n")


def test_an_old_flag_that_switches_off_is_told_the_new_one(capsys):
    with pytest.raises(SystemExit):
        command_arguments(["serve", "m", "--no-validate", "--prot", "1"])
    assert capsys.readouterr().err.endswith("; --no-validate is --no-validate-inputs now; did you mean --port?\n")


@pytest.mark.parametrize("old", OPTIONS)
def test_an_old_variable_is_told_the_new_one(old):
    before, now = environment_name(old), environment_name(RENAMED[old])
    told = [f"unknown variable {before}: it is {now} now"] if now in VARIABLES else []
    assert [words for words in unused_variables({before: "1"}) if words.endswith(" now")] == told
    assert not told or unused_variables({before: "", now: "1"}) == []


@pytest.mark.parametrize("old", COMMANDS)
def test_an_old_command_is_told_the_new_one(old, capsys):
    for more in ([], ["model:Stage"], ["--connect", "s", "model:Stage"]):
        if old == "penstock worker" and not more:
            continue  # a command that needs one of its own
        with pytest.raises(SystemExit) as ended:
            command_arguments([*old.split()[1:], *more])
        assert ended.value.code == 2
        assert capsys.readouterr().err.endswith(f"error: {old} is {RENAMED[old]} now\n")


def test_a_slip_in_a_command_of_a_command_is_no_old_command(capsys):
    with pytest.raises(SystemExit):
        command_arguments(["worker", "tset", "--stage", "square"])
    assert "invalid choice: 'tset'" in capsys.readouterr().err


@pytest.mark.parametrize("old", COMMANDS)
def test_each_new_command_is_there(old, capsys):
    with pytest.raises(SystemExit) as ended:
        command_arguments([*RENAMED[old].split()[1:], "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {RENAMED[old]} [")


@pytest.mark.parametrize("old", NAMES)
def test_an_old_name_of_a_module_is_told_the_new_one(old):
    def look_up(path):
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)

    with pytest.raises(AttributeError) as refused:
        look_up(old)
    assert str(refused.value) == f"{old} is {RENAMED[old]} now"
    assert look_up(RENAMED[old]) is not None


@pytest.mark.parametrize("module", ["penstock", "penstock.errors", "penstock.features", "penstock.jobs"])
def test_any_other_name_is_no_name_of_the_module(module):
    found = importlib.import_module(module)
    assert not hasattr(found, "bogus")
    with pytest.raises(AttributeError, match=f"^module '{module}' has no attribute 'bogus'$"):
        found.bogus  # noqa: B018
