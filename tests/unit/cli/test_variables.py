"""Which variables are told that they set nothing."""

from __future__ import annotations

import pytest

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
        "PENSTOCK_PORT",
        "PENSTOCK_COMPILE",
        "PENSTOCK_STAGE_PYTHONPATH",
        "PENSTOCK_PICTURES",
        "PENSTOCK_MODEL_PATH",
        "PENSTOCK_SERVICE_HOST",
        "PENSTOCK_SERVICE_PORT",
        "PENSTOCK_PORT_8000_TCP_ADDR",
        "PENSTOCK_",
        "MY_PENSTOCK_PROT",
        "PROT",
    ],
)
def test_every_other_variable_is_left_alone(name):
    assert misspelt_variables({name: "x"}) == []


def test_a_variable_that_is_empty_sets_nothing_anyhow():
    assert misspelt_variables({"PENSTOCK_PROT": ""}) == []
