"""A socket for workers from outside is one service's, whichever are named on the command line."""

from __future__ import annotations

import math

import pytest

import penstock as ps
from penstock.cli.external_flags import fields_of_each
from penstock.errors import ConfigError

GIVEN = {"remote_worker_socket": "/run/w.sock", "max_in_flight": 7}


def service(name, *, external):
    return ps.Service(ps.remote("square") if external else ps.stage(math.sqrt), name=name)


def test_the_socket_is_given_to_the_service_whose_workers_attach_and_the_rest_to_all():
    ours, theirs = service("ours", external=False), service("theirs", external=True)
    assert fields_of_each([ours, theirs], GIVEN, by_flag=False) == [(ours, {"max_in_flight": 7}), (theirs, GIVEN)]
    assert fields_of_each([ours], {"max_in_flight": 7}, by_flag=False) == [(ours, {"max_in_flight": 7})]


def test_a_flag_for_a_socket_that_nobody_attaches_at_is_left_for_the_start_to_refuse_and_a_variable_sets_nothing():
    ours = service("ours", external=False)
    assert fields_of_each([ours], GIVEN, by_flag=True) == [(ours, GIVEN)]
    assert fields_of_each([ours], GIVEN, by_flag=False) == [(ours, {"max_in_flight": 7})]


def test_one_socket_cannot_be_that_of_two_services():
    services = [service("one", external=True), service("ours", external=False), service("two", external=True)]
    with pytest.raises(
        ConfigError, match=r"^remote_worker_socket .* the services 'one' and 'two' have remote stages"
    ) as refused:
        fields_of_each(services, GIVEN, by_flag=True)
    assert "penstock.Service(..., remote_worker_socket=PATH)" in str(refused.value)
    assert fields_of_each(services, {"reattach_timeout": 1.0}, by_flag=True) == [
        (each, {"reattach_timeout": 1.0}) for each in services
    ]
