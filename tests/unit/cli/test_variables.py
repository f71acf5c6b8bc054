"""Which variables are told that they set nothing, and which flags are told how they are spelt."""

from __future__ import annotations

import pytest

from penstock.cli.main import command_arguments
from penstock.cli.options import misspelt_variables


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PENSTOCK_LOG_FORMT", "PENSTOCK_LOG_FORMAT"),
        ("PENSTOCK_PROT", "PENSTOCK_PORT"),
        ("PENSTOCK_LOGLEVEL", "PENSTOCK_LOG_LEVEL"),
        ("PENSTOCK_WORKER", "PENSTOCK_WORKERS"),
        ("PENSTOCK_MAX_QUEUE", "PENSTOCK_MAX_QUEUED"),
        ("PENSTOCK_API_KEYS_FILES", "PENSTOCK_API_KEY_FILE"),
    ],
)
def test_a_variable_near_to_that_of_an_option_is_told(name, meant):
    assert misspelt_variables({name: "x"}) == [f"the variable {name} sets nothing: did you mean {meant}?"]


@pytest.mark.parametrize(
    "name",
    [
        "PENSTOCK_PORT", "PENSTOCK_COMPILE", "PENSTOCK_STAGE_PYTHONPATH", "PENSTOCK_PICTURES", "PENSTOCK_MODEL_PATH",
        "PENSTOCK_SERVICE_HOST", "PENSTOCK_SERVICE_PORT", "PENSTOCK_PORT_8000_TCP_ADDR", "PENSTOCK_",
        "MY_PENSTOCK_PROT", "PROT",
    ],
)  # fmt: skip
def test_every_other_variable_is_left_alone(name):
    assert misspelt_variables({name: "x"}) == []


def test_a_variable_that_is_empty_sets_nothing_anyhow():
    assert misspelt_variables({"PENSTOCK_PROT": ""}) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["serve", "m", "--hots", "::"], "unrecognized arguments: --hots ::; did you mean --host?"),
        (["serve", "m", "--max_queued=5"], "unrecognized arguments: --max_queued=5; did you mean --max-queued?"),
        (["serve", "m", "--prot=1", "--loglevel", "info"], "--loglevel info; did you mean --port, --log-level?"),
        (["check", "m", "--tiemout", "1"], "unrecognized arguments: --tiemout 1; did you mean --timeout?"),
        (["serve", "m", "--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["check", "m", "--prot", "1"], "unrecognized arguments: --prot 1"),
        (["check", "m", "prot"], "unrecognized arguments: prot"),
    ],
)
def test_a_flag_that_is_not_known_is_told_which_one_is_near(words, told, capsys):
    with pytest.raises(SystemExit) as ended:
        command_arguments(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"{told}\n")


def test_the_help_calls_a_share_no_seconds(capsys):
    with pytest.raises(SystemExit):
        command_arguments(["serve", "--help"])
    shown = capsys.readouterr().out
    assert "--jobs-min-share FRACTION" in shown
    assert "--stall-dead SECONDS" in shown
    assert "--min-free-memory N" in shown
