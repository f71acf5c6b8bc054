"""The units of systemd and the objects of Kubernetes and KEDA that `penstock generate` prints.

That `systemd-analyze` and the schemas of Kubernetes take them is in
`tests/integration/program/test_config_validated.py`.
"""

from __future__ import annotations

import math
import re
import shlex

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.config_files.keda_object import ScalingDescription, scaled_object, usual_target
from penstock.cli.config_files.kubernetes_objects import ClusterDescription, cluster_objects, cluster_warnings
from penstock.cli.config_files.started import StartDescription, flags_of, name_of
from penstock.cli.config_files.systemd_unit import UnitDescription, service_unit, socket_unit, unit_warnings
from penstock.cli.config_files.yaml_text import yaml_text
from penstock.cli.main import command_arguments
from penstock.config import ServerOptions
from penstock.errors import ConfigError
from rows import each


def started(*flags, services=("prices:service",), name="prices", **server):
    return StartDescription(name, tuple(services), flags, ServerOptions(**server))


# -- the words of the command -----------------------------------------------------------------------------------------

GIVEN = {
    "port": 9000,
    "uds_mode": 0o660,
    "drain_delay": 2.0,
    "drain_timeout": math.inf,
    "keepalive_timeout": 0.25,
    "access_log": True,
    "unready_when_full": False,
    "tenant_header": "X-Tenant",
    "tls_cert": "-odd.pem",
}


def test_flags_say_what_was_given_and_penstock_serve_reads_them_so():
    words = flags_of(ServerOptions, GIVEN)
    arguments = command_arguments(["serve", "a:b", *words])
    read = {name: getattr(arguments, name) for name in GIVEN}
    assert read == {
        "port": "9000",
        "uds_mode": "660",
        "drain_delay": "2",
        "drain_timeout": "inf",
        "keepalive_timeout": "0.25",
        "access_log": True,
        "unready_when_full": False,
        "tenant_header": "X-Tenant",
        "tls_cert": "-odd.pem",
    }
    assert arguments.services == ["a:b"]


def test_a_flag_that_may_be_repeated_is():
    assert flags_of(ServerOptions, {"host": ("127.0.0.1", "::1")}) == ["--host", "127.0.0.1", "--host", "::1"]


def test_flags_that_are_left_out_are_not_there():
    assert flags_of(ServerOptions, GIVEN, leave_out=set(GIVEN) - {"port"}) == ["--port", "9000"]


@pytest.mark.parametrize(
    ("service", "name"),
    [
        ("prices:service", "prices"),
        ("shop.model_prices:service", "model-prices"),
        ("folder/Good.py:service", "good"),
        ("prices", "prices"),
        ("models/affairs/", "affairs"),
    ],
)
def test_a_name_is_made_of_the_module(service, name):
    assert name_of(service) == name


@pytest.mark.parametrize("service", ["", "9lives:service", "ä:service", f"{'a' * 64}:service", "./:x"])
def test_where_no_name_can_be_made_it_is_asked_for(service):
    with pytest.raises(ConfigError, match="--name"):
        name_of(service)


@pytest.mark.parametrize("name", ["", "Prices", "a_b", "a-", "-a", "a.b", "a b", "a\n", "a" * 64])
def test_a_name_is_one_that_kubernetes_takes(name):
    with pytest.raises(ConfigError, match="--name"):
        started(name=name)


@pytest.mark.parametrize("service", ["", "-x", "--reload"])
def test_a_service_is_no_flag(service):
    with pytest.raises(ConfigError, match="a service must be"):
        started(services=(service,))


# -- systemd ----------------------------------------------------------------------------------------------------------


def unit(start=None, **more):
    return UnitDescription(start or started(), "/opt/bin/penstock", "/srv/prices", **more)


def settings(text):
    lines = [line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {name: value for name, _, value in lines}


def test_systemd_waits_for_the_drain_and_what_comes_before_and_after_it():
    found = settings(service_unit(unit(started(drain_delay=2.0, drain_timeout=30.0))))
    assert found["TimeoutStopSec"] == "37"
    assert settings(service_unit(unit(started(drain_delay=0.2, drain_timeout=0.1))))["TimeoutStopSec"] == "6"
    assert settings(service_unit(unit(started(drain_timeout=math.inf))))["TimeoutStopSec"] == "infinity"
    assert (found["Type"], found["NotifyAccess"], found["KillMode"]) == ("notify", "main", "mixed")
    assert found["LimitNOFILE"] == "12048"
    assert settings(service_unit(unit(started(max_connections=10**9))))["LimitNOFILE"] == "1048576"


def test_systemd_runs_it_as_nobody_else_or_as_the_user_that_is_named():
    assert "DynamicUser=yes" in service_unit(unit())
    named = service_unit(unit(user="prices"))
    assert "User=prices" in named
    assert "DynamicUser" not in named


def test_a_low_port_and_the_folder_of_a_socket_need_leave():
    assert settings(service_unit(unit(started(port=443))))["AmbientCapabilities"] == "CAP_NET_BIND_SERVICE"
    assert "AmbientCapabilities" not in service_unit(unit(started(port=8000)))
    assert settings(service_unit(unit(started(uds="/run/prices/a.sock", port=80))))["RuntimeDirectory"] == "prices"
    for uds in ("/srv/a.sock", "/run/a.sock", "/run/a/b/c.sock", "/run/a b/c.sock"):
        assert "RuntimeDirectory" not in service_unit(unit(started(uds=uds)))


@pytest.mark.parametrize(
    ("server", "more", "words"),
    [
        ({"uds": "/run/a/b.sock", "uds_mode": 0o666}, {}, []),
        ({"uds": "/run/b.sock", "uds_mode": 0o666}, {}, ["only to its own directory"]),
        ({"uds": "b.sock", "uds_mode": 0o666}, {}, ["only to its own directory"]),
        ({"uds": "/run/a/b.sock"}, {}, ["uds_mode is 0600"]),
        ({"uds": "/run/b.sock", "uds_mode": 0o660}, {}, ["only to its own directory", "uds_mode is 0660"]),
        ({"uds": "/run/b.sock"}, {"user": "prices"}, []),
        ({"uds": "/run/b.sock"}, {"by_socket": True}, []),
        ({}, {}, []),
    ],
)
def test_a_unix_socket_that_nobody_could_make_or_reach_is_told(server, more, words):
    told = list(unit_warnings(unit(started(**server), **more)))
    assert len(told) == len(words)
    assert all(wanted in sentence for wanted, sentence in zip(words, told, strict=True))


def test_a_socket_unit_listens_in_place_of_the_server():
    by_socket = service_unit(unit(started(port=80), by_socket=True))
    assert "Requires=prices.socket" in by_socket
    assert "AmbientCapabilities" not in by_socket
    assert settings(socket_unit(unit(started(port=80))))["ListenStream"] == "127.0.0.1:80"
    assert settings(socket_unit(unit(started(host="::", port=80))))["ListenStream"] == "[::]:80"
    several = socket_unit(unit(started(host=("127.0.0.1", "::1"), port=80, uds="/run/a.sock")))
    assert re.findall("ListenStream=(.*)", several) == ["/run/a.sock", "127.0.0.1:80", "[::1]:80"]
    found = settings(socket_unit(unit(started(uds="/run/a.sock", uds_mode=0o660), user="prices")))
    assert (found["ListenStream"], found["SocketMode"], found["SocketUser"]) == ("/run/a.sock", "0660", "prices")


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"port": 0}, "port is 0"),
        ({"host": "localhost"}, "addresses, not"),
        ({"uds": "a.sock"}, "absolute"),
        ({"uds": "/run/a\\"}, "must not end with a backslash"),  # the mode on the next line would be a part of the path
        ({"uds": "/run/a "}, "spaces around it"),
    ],
)
def test_where_systemd_cannot_listen_no_socket_unit_is_made(server, words):
    with pytest.raises(ConfigError, match=words):
        socket_unit(unit(started(**server)))


@pytest.mark.parametrize("path", ["", "penstock", "/a\nb", " /a", "/a ", "/a\\"])
def test_paths_in_a_unit_are_absolute_and_one_line(path):
    with pytest.raises(ConfigError, match="--program"):
        UnitDescription(started(), path, "/")
    with pytest.raises(ConfigError, match="--directory"):
        UnitDescription(started(), "/p", path)


def test_a_service_that_would_join_two_lines_of_a_unit_is_refused():
    with pytest.raises(ConfigError, match="must not end with a backslash"):
        service_unit(unit(StartDescription("a", ("a\\",), (), ServerOptions())))


@pytest.mark.parametrize("user", ["", "a b", "9", "a\nb", "%u", "-a", "a" * 40])
def test_a_user_is_one(user):
    with pytest.raises(ConfigError, match="--user"):
        unit(user=user)


def test_what_ends_a_command_of_systemd_is_no_word_of_it():
    with pytest.raises(ConfigError, match="`;` alone"):
        service_unit(unit(started("--tenants-file", ";")))


@given(st.lists(st.text(min_size=1, max_size=12).filter(lambda text: not text.startswith("-")), min_size=1, max_size=4))
def test_every_word_reaches_the_command_as_it_was_or_is_refused(words):
    try:
        text = service_unit(unit(started(*words)))
    except ConfigError:
        assert ";" in words or not all(map(str.isprintable, words))
        return
    (line,) = re.findall("^ExecStart=(.*)$", text, re.MULTILINE)
    # What systemd expands, undone; behind that it reads quotes and backslashes as a shell does within double quotes.
    assert "%" not in line.replace("%%", "")
    assert "$" not in line.replace("$$", "")
    read = shlex.split(line.replace("%%", "%").replace("$$", "$"))
    assert read == ["/opt/bin/penstock", "serve", "prices:service", *words]


# -- YAML -------------------------------------------------------------------------------------------------------------

ODD = [
    "", " ", "a: b", "#", "- a", "'", '"', "\\", "a\nb", "yes", "null", "1e3", "{}", "\t", "\x85", "\u2028",
    "\ufeff", "😀",
]  # fmt: skip


@each("text", ODD)
def test_odd_texts_are_read_back_from_yaml(text):
    assert yaml.safe_load(f"a: {yaml_text(text)}") == {"a": text}


@given(st.text())
def test_every_text_is_read_back_from_yaml_or_refused(text):
    try:
        written = yaml_text(text)
    except ConfigError:
        assert "\0" in text or any("\ud800" <= c <= "\udfff" for c in text)
        return
    assert yaml.safe_load(f"a: {written}\nb: 1") == {"a": text, "b": 1}
    assert "\n" not in written


@pytest.mark.parametrize("text", ["\0", "\ud800"])
def test_what_yaml_cannot_have_is_refused(text):
    with pytest.raises(ConfigError, match="YAML"):
        yaml_text(text)


# -- Kubernetes -------------------------------------------------------------------------------------------------------


def cluster(start=None, image="example.org/prices:1", replicas=2):
    return ClusterDescription(start or started(drain_delay=5.0), image, replicas)


def objects(description):
    return {each["kind"]: each for each in yaml.safe_load_all(cluster_objects(description))}


def pod_of(found):
    return found["Deployment"]["spec"]["template"]["spec"]


def test_a_pod_has_the_time_of_its_drain_and_no_sleep_before_it():
    pod = pod_of(objects(cluster(started(drain_delay=5.0, drain_timeout=30.0))))
    assert pod["terminationGracePeriodSeconds"] == 40
    assert pod_of(objects(cluster(started(drain_delay=0.2, drain_timeout=0.1))))["terminationGracePeriodSeconds"] == 6
    assert "lifecycle" not in pod["containers"][0]


def test_there_are_never_fewer_pods_than_there_should_be():
    found = objects(cluster(replicas=3))
    assert found["Deployment"]["spec"]["replicas"] == 3
    assert found["Deployment"]["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels


def test_each_probe_asks_its_own_question():
    container = pod_of(objects(cluster(started(port=9000))))["containers"][0]
    asked = {kind: container[kind]["httpGet"]["path"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert asked == {"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/livez"}
    assert container["ports"] == [{"name": "http", "containerPort": 9000}]
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] == 600


def test_pods_that_speak_tls_are_asked_so():
    found = objects(cluster(started(tls_cert="c", tls_key="k")))
    assert pod_of(found)["containers"][0]["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert found["Service"]["spec"]["ports"][0]["port"] == 443


@given(st.lists(st.text(min_size=1), max_size=3))
def test_every_word_reaches_the_pod_as_it_was_or_is_refused(words):
    try:
        found = objects(cluster(started(*words)))
    except ConfigError:
        assert any("\0" in word or any("\ud800" <= c <= "\udfff" for c in word) for word in words)
        return
    command = pod_of(found)["containers"][0]["command"]
    assert command[:3] == ["penstock", "serve", "prices:service"]
    # Kubernetes makes one dollar sign of two, and expands what has but one.
    assert [expanded(word) for word in command[3:]] == words


def expanded(word):
    """As Kubernetes reads a word of a command, where no variable is set."""
    read = re.sub(r"\$\$|\$\([^)]*\)", lambda found: "$" if found[0] == "$$" else "EXPANDED", word)
    assert "EXPANDED" not in read
    return read


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: cluster(image=""), "--image"),
        (lambda: cluster(image="a b"), "--image"),
        (lambda: cluster(image="a\nb"), "--image"),
        (lambda: cluster(replicas=0), "--replicas"),
        (lambda: cluster(started(port=0)), "port is 0"),
        (lambda: cluster(started(drain_timeout=math.inf)), "inf"),
        (lambda: cluster(started(drain_delay=1e10)), "inf"),
    ],
)
def test_what_no_pod_can_be_is_refused(wrong, words):
    with pytest.raises(ConfigError, match=words):
        wrong()


def test_what_a_cluster_cannot_promise_is_told():
    assert list(cluster_warnings(cluster())) == []
    assert "--drain-delay 5" in "".join(cluster_warnings(cluster(started())))
    assert "one replica" in "".join(cluster_warnings(cluster(replicas=1)))
    assert "/keys" in "".join(cluster_warnings(cluster(started(drain_delay=5.0, api_key_file="/keys"))))


# -- KEDA -------------------------------------------------------------------------------------------------------------


def scaling(**more):
    usual = {
        "name": "prices", "service": "prices", "prometheus": "http://prometheus:9090", "target": 6.0, "timeout": 60.0,
        "least": 1, "most": 10, "fallback": 2,
    }  # fmt: skip
    return ScalingDescription(**(usual | more))


def test_replicas_follow_the_backlog_and_fall_back_where_it_is_not_known():
    spec = yaml.safe_load(scaled_object(scaling(least=2, most=8, fallback=4, target=2.5)))["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 8)
    assert spec["fallback"] == {"failureThreshold": 3, "replicas": 4}
    (trigger,) = spec["triggers"]
    assert (trigger["type"], trigger["metricType"]) == (
        "prometheus",
        "AverageValue",
    )  # without which there is no fallback
    assert trigger["metadata"] == {
        "serverAddress": "http://prometheus:9090",
        "query": 'sum(penstock_backlog_seconds{service="prices"})',
        "threshold": "2.5",
        "ignoreNullValues": "false",
    }


def test_the_target_leaves_time_to_start_another():
    assert [usual_target(timeout) for timeout in (60.0, 10.0, 600.0, math.inf)] == [6.0, 1.0, 6.0, 6.0]
    assert scaling(timeout=math.inf).target == 6.0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": "Prices"}, "--name"),
        ({"service": 'a"}'}, "name must consist of letters"),
        ({"prometheus": "prometheus:9090"}, "--prometheus"),
        ({"prometheus": "http://a\nb"}, "--prometheus"),
        ({"target": 0.0}, "--target"),
        ({"target": math.nan}, "--target"),
        ({"target": 60.0}, "--target"),
        ({"least": 0}, "--min-replicas"),
        ({"least": 11}, "--max-replicas"),
        ({"fallback": 11}, "--replicas"),
        ({"fallback": 0}, "--replicas"),
    ],
)
def test_what_cannot_scale_is_refused(wrong, words):
    with pytest.raises(ConfigError, match=words):
        scaling(**wrong)
