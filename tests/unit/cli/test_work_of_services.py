"""What `penstock consume` makes of the services it is given."""

from __future__ import annotations

import argparse
import math

import pytest

import penstock as ps
from penstock.cli.options import WronglyCalled
from penstock.cli.work import Work
from penstock.config import ServerOptions
from penstock.option_fields import flag_name


def read(*flags, environ=None):
    parser = argparse.ArgumentParser()
    others = ("api_key_file", "tls_cert", "tls_key", "max_body_bytes", "log_level")
    for name in ("queue_url", "queue_url_file", "run_timeout", "progress_deadline", "bind", "health_bind", *others):
        parser.add_argument(flag_name(name))
    return Work.read(parser.parse_args(["--queue-url", "sqlite:///q.db", *flags]), environ or {})


def stalls_after(work, **options):
    (service,) = work.bounded([ps.Service(math.sqrt, **options)])
    return service.options.progress_deadline


def test_a_stage_has_stalled_only_after_the_longest_run_of_a_job():
    assert stalls_after(read()) == 3600.0
    assert stalls_after(read("--run-timeout", "90")) == 90.0


@pytest.mark.parametrize(
    "given", [{"flags": ("--progress-deadline", "60")}, {"environ": {"PENSTOCK_PROGRESS_DEADLINE": "60"}}]
)
def test_what_was_said_is_kept(given):
    assert stalls_after(read(*given.get("flags", ()), environ=given.get("environ"))) == 60.0


def test_a_stage_has_stalled_before_its_service_is_dead():
    assert stalls_after(read("--run-timeout", "900"), liveness_deadline=100.0) == 100.0


def test_what_the_service_itself_says_is_kept():
    assert stalls_after(read(), progress_deadline=math.inf) == math.inf
    assert stalls_after(read(), progress_deadline=5.0) == 5.0


@pytest.mark.parametrize(
    ("flags", "unread"),
    [
        ((), ("TLS_CERT", "API_KEY_FILE", "MAX_BODY_BYTES")),
        (("--health-bind", ":8001"), ("TLS_CERT", "API_KEY_FILE")),
        (("--bind", ":8000"), ()),
    ],
)
def test_variables_of_a_server_count_where_there_is_one(flags, unread):
    environ = {"PENSTOCK_LOG_LEVEL": "debug", **{f"PENSTOCK_{name}": "no number" for name in unread}}
    assert read(*flags, environ=environ).server == ServerOptions(log_level="debug")
    for name in {"TLS_CERT", "MAX_BODY_BYTES"} - {*unread}:
        with pytest.raises(WronglyCalled):
            read(*flags, environ={f"PENSTOCK_{name}": "no number"})


def test_jobs_come_in_from_a_network_where_a_key_is_asked_for(tmp_path):
    (tmp_path / "t.toml").write_text(f'[tenants.gold]\nkey_sha256 = ["{"a" * 64}"]')
    keyed, plain = (ps.Service(math.sqrt, tenants_file=path) for path in (str(tmp_path / "t.toml"), None))
    beyond = read("--bind", "0.0.0.0:0")
    beyond._check_closed([keyed], [])
    with pytest.raises(WronglyCalled, match="would be open to every client"):
        beyond._check_closed([plain], [])
    for work in (read("--bind", "127.0.0.1:0"), read("--health-bind", "0.0.0.0:0")):
        work._check_closed([plain], [])
