"""Options: their defaults, their limits, and how they are read from the environment."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
import os
import pickle
import re
import socket
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

import penstock
from penstock.config import SERVICE_ARGUMENTS, STAGE_ARGUMENTS, Batch, ServerOptions, ServiceOptions, StageOptions
from penstock.errors import ConfigError
from penstock.option_fields import SWITCH, environment_name, from_environment, option
from penstock.runtime.spec import stage
from penstock.server_names import listening_hosts
from penstock.service import Service
from rows import each

PATHS = ["uds", "tls_cert", "tls_key", "api_key_file", "tenants_file", "remote_worker_socket"]

OWNERS = [Batch, StageOptions, ServiceOptions, ServerOptions]
OPTIONS = [(owner, f) for owner in OWNERS for f in dataclasses.fields(owner)]
LIMITED = [(owner, f) for owner, f in OPTIONS if f.metadata["minimum"] is not None]
WITH = {"liveness_deadline": {"progress_deadline": 0.1}, "max_idle_gap": {"max_wait": 1}}
"""What else has to be said for an option to be at its limit."""


def test_every_option_says_what_it_means():
    assert all(f.metadata["help"] for _, f in OPTIONS)


def test_a_service_is_not_dead_before_it_is_unready():
    assert ServiceOptions(progress_deadline=5, liveness_deadline=5).liveness_deadline == 5
    assert ServiceOptions(progress_deadline=math.inf).liveness_deadline == math.inf
    with pytest.raises(
        ConfigError, match=r"^liveness_deadline must be at least progress_deadline, which is 60\.0, got 59\.5$"
    ):
        ServiceOptions(liveness_deadline=59.5)
    with pytest.raises(
        ConfigError, match=r"^liveness_deadline must be at least progress_deadline, which is inf, got 600$"
    ):
        ServiceOptions(progress_deadline=math.inf, liveness_deadline=600)


@each(("owner", "f"), LIMITED)
def test_an_option_is_taken_at_its_limit_and_beyond_it_refused_with_the_value(owner, f):
    name, limit, others = f.name, f.metadata["minimum"], WITH.get(f.name, {})
    assert getattr(owner(**{name: limit}, **others), name) == limit
    beyond = limit - 1 if isinstance(limit, int) else limit - 0.01
    with pytest.raises(ConfigError, match=f"^{name} must be at least {limit:g}, got {beyond!r}$"):
        owner(**{name: beyond}, **others)


@each(
    ("owner", "name", "limit", "beyond", "words"),
    [
        (Batch, "max_size", 1_000_000, 1_000_001, "1000000, got 1000001"),
        (Batch, "max_wait", 86_400, 86_400.5, "86400, or inf, got 86400.5"),
        (Batch, "max_wait", 86_400.0, 10**400, f"86400, or inf, got {10**400}"),
        (Batch, "max_idle_gap", 86_400, 86_401, "86400, or inf, got 86401"),
        (Batch, "max_idle_gap", math.inf, 1e308, "86400, or inf, got 1e+308"),
        (ServiceOptions, "timeout", sys.float_info.max, 10**400, f"{sys.float_info.max}, or inf, got {10**400}"),
        (ServiceOptions, "timeout", math.inf, 10**400, f"{sys.float_info.max}, or inf, got {10**400}"),
        (ServiceOptions, "background_share", 1, 1.5, "1, got 1.5"),
        (ServiceOptions, "remote_worker_socket_mode", 0o777, 0o1000, "0o777, got 0o1000"),
        (ServerOptions, "port", 65535, 65536, "65535, got 65536"),
        (ServerOptions, "uds_mode", 0o777, 0o1000, "0o777, got 0o1000"),
    ],
)
def test_some_numbers_have_an_upper_limit_too(owner, name, limit, beyond, words):
    others = WITH.get(name, {})
    assert getattr(owner(**{name: limit}, **others), name) == limit
    with pytest.raises(ConfigError) as refused:
        owner(**{name: beyond}, **others)
    assert str(refused.value) == f"{name} must be at most {words}"


@each(("owner", "f"), LIMITED)
def test_a_number_must_be_one(owner, f):
    words = '"auto" or a number' if f.name == "max_wait" else "a number"
    for value in ("5", True, math.nan, [1]):
        with pytest.raises(ConfigError, match=f"{f.name} must be {words}, got"):
            owner(**{f.name: value})


@each(("owner", "f"), LIMITED)
def test_a_count_must_be_whole_and_a_time_need_not(owner, f):
    name, limit = f.name, f.metadata["minimum"]
    if isinstance(f.default, int) or name == "shm_bytes":
        for value in (limit + 0.5, float(limit), math.inf):
            with pytest.raises(ConfigError, match=f"{name} must be a whole number, got {value!r}"):
                owner(**{name: value})
    else:
        assert getattr(owner(**{name: limit + 0.5}, **WITH.get(name, {})), name) == limit + 0.5


@each(("owner", "f"), OPTIONS)
def test_none_is_a_value_only_where_it_means_something(owner, f):
    if f.default is None:
        assert getattr(owner(), f.name) is None
        return
    with pytest.raises(ConfigError, match=rf"{f.name} must .*got None"):
        owner(**{f.name: None})


@each(
    ("owner", "name"),
    [(owner, f.name) for owner, f in OPTIONS if isinstance(f.default, bool) and not f.metadata["limit"]],
)
def test_a_switch_is_true_or_false(owner, name):
    assert getattr(owner(**{name: True}), name) is True
    with pytest.raises(ConfigError, match=f"{name} must be true or false, got 'no'"):
        owner(**{name: "no"})


@each(("owner", "f"), [(owner, f) for owner, f in OPTIONS if f.metadata["choices"]])
def test_a_choice_is_one_of_those_named(owner, f):
    choices = f.metadata["choices"]
    for choice in choices:
        assert getattr(owner(**{f.name: choice}), f.name) == choice
    with pytest.raises(ConfigError) as refused:
        owner(**{f.name: "another"})
    assert str(refused.value) == f"{f.name} must be one of {', '.join(map(repr, choices))}, got 'another'"


@pytest.mark.parametrize("level", ["my.model=loud", 10])
def test_a_log_level_that_cannot_be_read_is_refused(level):
    assert ServerOptions(log_level="warning,my.model=debug").log_level == "warning,my.model=debug"
    with pytest.raises(ConfigError, match=r"log_level.*(unknown level 'loud'|must be a string such as 'info')"):
        ServerOptions(log_level=level)


# -- options that depend on each other --------------------------------------------------------------------------------


@each(
    ("policy", "words"),
    [
        ({"max_wait": 0, "max_idle_gap": 0.01}, "max_idle_gap=0.01 needs max_wait > 0, got max_wait=0"),
        ({"max_idle_gap": 0.01}, 'max_idle_gap=0.01 needs a fixed max_wait, got max_wait="auto"'),
        ({"delay_when_idle": False}, 'delay_when_idle=False needs a fixed max_wait, got max_wait="auto"'),
        ({"max_wait": math.inf}, "max_wait=inf needs a finite max_idle_gap, got None"),
        ({"max_wait": math.inf, "max_idle_gap": math.inf}, "max_wait=inf needs a finite max_idle_gap, got inf"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(policy, words):
    with pytest.raises(ConfigError) as refused:
        Batch(**policy)
    assert str(refused.value).startswith(words)


@each(
    "policy",
    [
        {"max_wait": 0.1, "max_idle_gap": 0},
        {"max_wait": math.inf, "max_idle_gap": 0.5},
        {"max_wait": 0.1, "delay_when_idle": False},
        {"max_wait": 0, "delay_when_idle": False},
    ],
)
def test_a_policy_that_does_not_is_taken(policy):
    assert {name: getattr(Batch(**policy), name) for name in policy} == policy


@pytest.mark.parametrize("name", ["host", *PATHS])
def test_a_path_holds_no_null_character(name):
    with pytest.raises(ConfigError, match=rf"^{name} must not contain a null character, got 'a\\x00b'$"):
        (ServiceOptions if name in ("tenants_file", "remote_worker_socket") else ServerOptions)(**{name: "a\0b"})


# -- hosts and origins ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["host", "cors_allow_origin"])
def test_an_option_of_several_texts_takes_one_too_and_keeps_its_list(name):
    text = "http://127.0.0.1:3000"
    assert getattr(ServerOptions(**{name: text}), name) == text
    for given in ([text, text], (text, text)):
        options = ServerOptions(**{name: given})
        assert getattr(options, name) == (text, text)
        assert hash(options) == hash(ServerOptions(**{name: (text, text)}))


@pytest.mark.parametrize("name", ["host", "cors_allow_origin"])
@pytest.mark.parametrize("value", [5, b"::1", [1], {"::1"}])
def test_an_option_of_several_texts_takes_nothing_else(name, value):
    with pytest.raises(
        ConfigError, match=rf"^{name} must be a string or a list of strings, got {re.escape(repr(value))}$"
    ):
        ServerOptions(**{name: value})


@each(
    ("hosts", "words"),
    [
        (["::1", ""], "host must not be empty; leave it out for the default"),
        (("",), "host must not be empty; leave it out for the default"),
        (["::1", "a\0b"], r"host must not contain a null character, got 'a\x00b'"),
        ([], "host must name at least one address; leave it out for the default"),
        ((), "host must name at least one address; leave it out for the default"),
    ],
)
def test_several_hosts_are_addresses_and_one_at_least(hosts, words):
    with pytest.raises(ConfigError) as refused:
        ServerOptions(host=hosts)
    assert str(refused.value) == words


def test_there_may_be_no_origin():
    assert ServerOptions(cors_allow_origin=[]).cors_allow_origin == ()


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        ({}, ("127.0.0.1",)),
        ({"uds": "/run/s"}, ()),
        ({"host": "::"}, ("::",)),
        ({"host": "127.0.0.1", "uds": "/run/s"}, ("127.0.0.1",)),
        ({"host": ["::1", "10.0.0.1"], "uds": "/run/s"}, ("::1", "10.0.0.1")),
    ],
)
def test_a_server_that_is_told_no_host_is_reached_from_its_machine_or_by_its_unix_socket_alone(given, hosts):
    options = ServerOptions(**given)
    assert listening_hosts(options.host, options.uds) == hosts


@each(
    "origin",
    [
        "https://app.example", "http://localhost:3000", "http://127.0.0.1:8080", "http://[::1]:5173",
        "https://xn--bcher-kva.example:8443", "http://my_host", "http://app.example:443",
        "https://app.example:65535", "chrome-extension://abcdefghijklmnop", "capacitor://localhost", "*",
    ],
)  # fmt: skip
def test_an_origin_is_what_a_browser_sends(origin):
    assert ServerOptions(cors_allow_origin=origin).cors_allow_origin == origin


@each(
    "origin",
    [
        "https://app.example/", "https://app.example/path", "https://app.example?q", "https://app.example:",
        "https://app.example:0", "https://app.example:65536", "https://app.example:8080/", "https://App.example",
        "HTTPS://app.example", "https://b\u00fccher.example", "https://me@app.example", "https://*.example",
        "https://.example", "https://", "//app.example", "app.example", "https://a.example\n",
        "https://a.example, https://b.example", " https://a.example", "**",
    ],
)  # fmt: skip
def test_an_origin_that_no_browser_sends_is_refused_with_what_to_write(origin):
    with pytest.raises(ConfigError) as refused:
        ServerOptions(cors_allow_origin=["https://good.example", origin])
    words = str(refused.value)
    assert words.startswith("cors_allow_origin must be SCHEME://HOST or SCHEME://HOST:PORT as browsers send it")
    assert "without a path or a trailing slash" in words
    assert words.endswith(f"got {origin!r}")


@pytest.mark.parametrize(("origin", "sent"), [("http://a.b:80", "http://a.b"), ("https://[::1]:443", "https://[::1]")])
def test_a_port_that_browsers_leave_out_is_refused_with_what_they_send(origin, sent):
    with pytest.raises(ConfigError) as refused:
        ServerOptions(cors_allow_origin=origin)
    assert str(refused.value) == f"cors_allow_origin must be {sent} as browsers send it, got {origin!r}"


def test_the_origin_of_pages_that_have_none_is_refused():
    with pytest.raises(ConfigError, match=r"^cors_allow_origin cannot be 'null', because any page can use that origin"):
        ServerOptions(cors_allow_origin="null")


def test_a_socket_for_workers_has_a_path_that_the_kernel_takes(tmp_path):
    assert ServiceOptions(remote_worker_socket="x" * 107).remote_worker_socket == "x" * 107
    long = "/run/" + "ü" * 52
    words = f"remote_worker_socket: the path has 109 bytes, and the path of a Unix socket has at most 107: {long!r}"
    with pytest.raises(ConfigError, match=f"^{re.escape(words)}$"):
        ServiceOptions(remote_worker_socket=long)
    # The limit is the kernel's.
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(OSError, match="too long"):
        sock.bind(str(tmp_path).ljust(108, "x"))


class Tree(os.PathLike):
    def __fspath__(self):
        return b"tree/\xff"


@each("name", PATHS)
def test_a_path_may_be_any_path_and_is_a_text_then(name):
    kind = ServerOptions if name in {f.name for f in dataclasses.fields(ServerOptions)} else ServiceOptions
    pair = {"tls_cert": "a", "tls_key": "a"} if name.startswith("tls") else {}
    for given, text in ((Path("b"), "b"), (Tree(), "tree/\udcff"), ("c", "c")):
        options = kind(**{**pair, name: given})
        assert getattr(options, name) == text
        assert hash(options) == hash(kind(**{**pair, name: text}))


@each("path", [7, True, b"bytes", ["a"]])
def test_what_is_no_path_is_refused(path):
    for kind, name in (
        (ServerOptions, "uds"),
        (ServiceOptions, "remote_worker_socket"),
        (ServiceOptions, "tenants_file"),
    ):
        with pytest.raises(ConfigError) as refused:
            kind(**{name: path})
        words = f"{name} must be the path of a file, as a string or a `pathlib.Path`, got {path!r}"
        assert str(refused.value) == words
    with pytest.raises(ConfigError, match="tenants_file must not contain a null character, got 'a"):
        ServiceOptions(tenants_file=Path("a\0b"))


@pytest.mark.parametrize("one", ["tls_cert", "tls_key"])
def test_a_certificate_and_its_key_go_together(one):
    with pytest.raises(ConfigError, match="tls_cert and tls_key must be set together"):
        ServerOptions(**{one: "x.pem"})
    assert ServerOptions(tls_cert="a", tls_key="b").tls_key == "b"


# -- environment ------------------------------------------------------------------------------------------------------


@each(("owner", "f"), OPTIONS)
def test_every_option_has_a_variable_that_is_read(owner, f):
    texts = {bool: ("yes", True), int: ("503", 503), float: ("2.5", 2.5), str: ("json", "json")}
    kind = {"max_wait": float, "max_idle_gap": float, "shm_bytes": int}.get(
        f.name, str if f.default is None else type(f.default)
    )
    text, value = ("640", 0o640) if f.name.endswith("_mode") else texts.get(kind, texts[str])
    value = (value,) if f.metadata["repeated"] else value
    assert from_environment(owner, {f"PENSTOCK_{f.name.upper()}": text}) == {f.name: value}
    for word in f.metadata["words"]:
        assert from_environment(owner, {f"PENSTOCK_{f.name.upper()}": word}) == {f.name: word}


def test_commas_stand_between_the_texts_of_a_variable_that_has_several():
    environ = {"PENSTOCK_HOST": "::1, 10.0.0.1", "PENSTOCK_CORS_ALLOW_ORIGIN": "https://a.example,https://b.example"}
    found = from_environment(ServerOptions, environ)
    assert found == {"host": ("::1", "10.0.0.1"), "cors_allow_origin": ("https://a.example", "https://b.example")}
    with pytest.raises(ConfigError, match=r"^host must not be empty"):
        ServerOptions(**from_environment(ServerOptions, {"PENSTOCK_HOST": "::1,"}))


def test_what_the_environment_does_not_name_is_left_out():
    environ = {"PENSTOCK_PORT": "9000", "PENSTOCK_NOTHING": "1", "PORT": "1", "penstock_host": "x"}
    assert from_environment(ServerOptions, environ) == {"port": 9000}
    assert environment_name("max_body_bytes") == "PENSTOCK_MAX_BODY_BYTES"


@pytest.mark.parametrize("link", ["tcp://10.0.0.1:8000", "udp://[fd00::1]:53", "sctp://10.0.0.1:1"])
def test_what_kubernetes_sets_for_a_service_of_our_name_is_no_port(link):
    assert from_environment(ServerOptions, {"PENSTOCK_PORT": link, "PENSTOCK_HOST": link}) == {"host": (link,)}


def test_only_the_variables_that_are_asked_for_are_read():
    assert from_environment(ServerOptions, {"PENSTOCK_PORT": "81", "PENSTOCK_DRAIN_TIMEOUT": "x"}, ["port"]) == {
        "port": 81
    }


def test_an_empty_variable_sets_nothing():
    for owner in OWNERS:
        empty = {environment_name(f.name): "" for f in dataclasses.fields(owner)}
        assert from_environment(owner, empty) == {}


@pytest.mark.parametrize("name", ["host", "uds", "tls_cert", "tls_key", "api_key_file"])
def test_an_empty_text_is_no_value(name):
    with pytest.raises(ConfigError, match=f"^{name} must not be empty"):
        ServerOptions(**{name: ""})


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("Yes", True), ("0", False), ("FALSE", False), ("no", False)],
)
def test_a_switch_is_read_as_people_write_it(text, value):
    assert from_environment(ServiceOptions, {"PENSTOCK_VALIDATE_INPUTS": text}) == {"validate_inputs": value}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("PENSTOCK_PORT", "http", "--port (or PENSTOCK_PORT): expected an integer, got 'http'"),
        ("PENSTOCK_PORT", "80.5", "--port (or PENSTOCK_PORT): expected an integer, got '80.5'"),
        (
            "PENSTOCK_DRAIN_TIMEOUT",
            "soon",
            "--drain-timeout (or PENSTOCK_DRAIN_TIMEOUT): expected a number, got 'soon'",
        ),
        ("PENSTOCK_ACCESS_LOG", "maybe", "--access-log (or PENSTOCK_ACCESS_LOG): expected true or false, got 'maybe'"),
        ("PENSTOCK_UDS_MODE", "900", "--uds-mode (or PENSTOCK_UDS_MODE): expected an octal number, such as 660, got"),
    ],
)
def test_a_variable_that_cannot_be_read_is_refused_with_its_text(name, text, reason):
    with pytest.raises(ConfigError, match=re.escape(reason)):
        from_environment(ServerOptions, {name: text})


def test_a_number_without_a_default_is_read_as_the_number_that_it_is():
    assert from_environment(ServiceOptions, {"PENSTOCK_SHM_BYTES": "0"}) == {"shm_bytes": 0}
    large = str(2**53 + 1)  # no float is this number
    assert from_environment(ServiceOptions, {"PENSTOCK_SHM_BYTES": large}) == {"shm_bytes": 2**53 + 1}
    for text in ("1e9", "256M", "0.5"):
        with pytest.raises(ConfigError, match=re.escape(f"expected an integer, got {text!r}")):
            from_environment(ServiceOptions, {"PENSTOCK_SHM_BYTES": text})


# -- options of a stage ----------------------------------------------------------------------------------------------


@each(
    ("wrong", "words"),
    [
        ({"prefetch": -1}, "prefetch must be a whole number of at least 0, got -1"),
        ({"prefetch": None}, "prefetch must be a whole number of at least 0, got None"),
        ({"max_in_flight_batches": 0}, "max_in_flight_batches must be a whole number of at least 1, got 0"),
        ({"max_in_flight_batches": 1.5}, "max_in_flight_batches must be a whole number of at least 1, got 1.5"),
        ({"max_in_flight_batches": True}, "max_in_flight_batches must be a whole number of at least 1, got True"),
        ({"max_queued": 0}, "max_queued must be a whole number of at least 1, got 0"),
        ({"max_queued": 1.5}, "max_queued must be a whole number of at least 1, got 1.5"),
        ({"max_queued": True}, "max_queued must be a whole number of at least 1, got True"),
        ({"timeout": 0}, "timeout must be more than 0 seconds, got 0"),
        ({"timeout": math.inf}, "timeout must be more than 0 seconds, got inf"),
        ({"timeout": math.nan}, "timeout must be more than 0 seconds, got nan"),
        ({"timeout": "1"}, "timeout must be more than 0 seconds, got '1'"),
        ({"orphan_timeout": 0}, 'orphan_timeout must be "auto", or more than 0 seconds; inf: never, got 0'),
        ({"orphan_timeout": None}, 'orphan_timeout must be "auto", or more than 0 seconds; inf: never, got None'),
        ({"orphan_timeout": math.nan}, 'orphan_timeout must be "auto", or more than 0 seconds; inf: never, got nan'),
        ({"unhealthy_after": -1}, "unhealthy_after must be at least 0 seconds; inf: never, got -1"),
        ({"unhealthy_after": math.nan}, "unhealthy_after must be at least 0 seconds; inf: never, got nan"),
        ({"unhealthy_after": "0"}, "unhealthy_after must be at least 0 seconds; inf: never, got '0'"),
        ({"bisect": 1}, "bisect must be True or False, got 1"),
        ({"retry": None}, "retry must be True or False, got None"),
    ],
)
def test_an_option_of_a_stage_outside_its_limit_is_refused_with_its_value(wrong, words):
    with pytest.raises(ConfigError) as refused:
        StageOptions(**wrong)
    assert str(refused.value) == words


class Size(enum.IntEnum):
    SMALL = 2


@each(
    ("given", "kept"),
    [
        ({"prefetch": Size.SMALL}, 2),
        ({"max_in_flight_batches": Size.SMALL}, 2),
        ({"max_queued": 10**30}, sys.maxsize),
        ({"timeout": 2}, 2.0),
        ({"timeout": True}, 1.0),
        ({"timeout": np.float64(0.5)}, 0.5),
        ({"orphan_timeout": "auto"}, "auto"),
        ({"orphan_timeout": math.inf}, math.inf),
        ({"orphan_timeout": 1}, 1.0),
        ({"unhealthy_after": 0}, 0.0),
        ({"unhealthy_after": math.inf}, math.inf),
    ],
)
def test_an_option_of_a_stage_is_kept_as_a_plain_value_that_a_message_can_carry(given, kept):
    ((name, _),) = given.items()
    options = StageOptions(**given)
    assert (type(getattr(options, name)), getattr(options, name)) == (type(kept), kept)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(options), type=StageOptions) == options


@pytest.mark.parametrize("owner", [ServiceOptions, ServerOptions])
def test_each_option_of_a_service_and_of_the_server_is_read_somewhere(owner):
    package = Path(penstock.__file__).parent
    sources = [path.read_text() for path in package.rglob("*.py") if path.name != "config.py"]
    read = re.findall(r"(?<!spec\.)options\.(\w+)", "\n".join(sources))
    assert {f.name for f in dataclasses.fields(owner)} <= set(read)


def test_a_new_switch_needs_its_field_alone_to_be_checked_and_to_travel():
    eager = ("eager", bool, option(False, "whether it hurries", limit=SWITCH))
    more = dataclasses.make_dataclass("More", [eager], bases=(StageOptions,), frozen=True, slots=True)
    with pytest.raises(ConfigError, match=r"^eager must be True or False, got 'yes'$"):
        more(eager="yes")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(more(eager=True)), type=more).eager
    with pytest.raises(msgspec.ValidationError, match="prefetch must be a whole number of at least 0, got -1"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"prefetch": -1}), type=more)


# -- arguments that there are not --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Batch, ServiceOptions, ServerOptions])
def test_a_field_that_there_is_not_is_a_sentence_that_says_where_it_is(kind):
    with pytest.raises(ConfigError) as refused:
        kind(num_workers=2)
    words = "there is no 'num_workers' here: write `penstock.stage(..., workers=...)`"
    assert str(refused.value) == f"penstock.{kind.__name__}: {words}"
    assert pickle.loads(pickle.dumps(kind())) == kind()


def test_the_names_of_arguments_are_those_of_the_signatures():
    assert set(STAGE_ARGUMENTS) == set(inspect.signature(stage).parameters) - {"target"}
    assert set(SERVICE_ARGUMENTS) == set(inspect.signature(Service).parameters) - {"stages", "fields"}


# -- the path of health checks -----------------------------------------------------------------------------------------


@each("path", ["/", "/health_check", "/-/healthy", "/a/b.c~d", "/.well-known/up", "/v1..2", "/v1/m:up"])
def test_a_health_path_is_one_that_no_proxy_changes(path):
    assert ServerOptions(health_path=path).health_path == path


@each(
    "path",
    [
        "health", "/health/", "//health", "/a//b", "/a?b", "/a#b", "/a b", "/a%20b", "/\u00fc", "/a\n", "/{id}",
        "/../a", "/a/.",
    ],
)  # fmt: skip
def test_any_other_path_is_refused_with_what_it_may_be(path):
    with pytest.raises(
        ConfigError, match=r"^health_path must start with a slash, must not end with one, and may have letters"
    ):
        ServerOptions(health_path=path)
    with pytest.raises(
        ConfigError, match=r"^predict_path must start with a slash, must not end with one, and may have letters"
    ):
        ServiceOptions(predict_path=path)
