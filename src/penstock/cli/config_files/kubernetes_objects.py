"""Write the objects of Kubernetes that run `penstock serve`: Deployment, Service, PodDisruptionBudget.  Pure.

Contract
--------
* A pod is never ended before its drain may be over, and a new one takes traffic before an old one ends.
* Every text of the user is quoted, and reaches `penstock` as it was given: Kubernetes expands nothing in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.cli.config_files.layout import because
from penstock.cli.config_files.started import END_MARGIN_SECONDS, StartDescription
from penstock.cli.config_files.yaml_text import yaml_text
from penstock.errors import ConfigError

LOAD_SECONDS: Final = 600
"""How long the models of a pod may take to load."""
STARTUP_PERIOD: Final = 2
USER: Final = 10001
"""Any user but root; that of our Dockerfile."""
NOTICED_SECONDS: Final = 5.0
"""In which a cluster has told everybody that a pod is ending."""
_LONGEST_GRACE: Final = 2**31 - 1
_FILES: Final = ("tls_cert", "tls_key", "api_key_file")


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A server in pods."""

    start: StartDescription
    image: str
    replicas: int

    def __post_init__(self) -> None:
        if not self.image or not self.image.isprintable() or " " in self.image:
            raise ConfigError(f"--image must be the name of an image, such as example.org/prices:1, got {self.image!r}")
        if self.replicas < 1:
            raise ConfigError(f"--replicas must be at least 1, got {self.replicas}")
        if self.start.server.port == 0:
            raise ConfigError("a pod needs a fixed port, but port is 0")
        if self.start.end_seconds > _LONGEST_GRACE:
            raise ConfigError("Kubernetes needs a finite time to terminate a pod: drain_delay and drain cannot be inf")


def cluster_warnings(description: ClusterDescription) -> Iterator[str]:
    """Sentences on what the options do not allow the cluster to promise."""
    server = description.start.server
    if server.drain_delay < NOTICED_SECONDS:
        yield (
            f"drain_delay is {server.drain_delay:g} s, but a cluster still sends requests to a pod for "
            "a moment after its termination began, and these fail. Write --drain-delay "
            f"{NOTICED_SECONDS:g}"
        )
    if description.replicas == 1:
        yield "there is only one replica: if its node is drained or fails, the service is down"
    for name in _FILES:
        if (path := getattr(server, name)) is not None:
            yield f"{name} is {path}: add that file to the image, or mount a volume with it"


def cluster_objects(description: ClusterDescription) -> str:
    """The three objects, in one stream.

    Raises:
        ConfigError: a text cannot be written in YAML.
    """
    top = "# Penstock in Kubernetes, made by `penstock generate k8s`.  Run it again when an option changes."
    parts = (_deployment(description), _service(description), _budget(description))
    return "\n".join([top, *(line for part in parts for line in ("---", *part)), ""])


def _deployment(description: ClusterDescription) -> list[str]:
    start, server = description.start, description.start.server
    name, scheme = start.name, "HTTPS" if server.tls_cert is not None else "HTTP"
    return [
        "apiVersion: apps/v1",
        "kind: Deployment",
        *_metadata(name),
        "spec:",
        f"  replicas: {description.replicas}",
        "  selector:",
        "    matchLabels:",
        f"      app.kubernetes.io/name: {yaml_text(name)}",
        "  strategy:",
        "    type: RollingUpdate",
        "    rollingUpdate:",
        *_comment(6, "An old pod is terminated when a new one is ready: there are never fewer than replicas."),
        "      maxUnavailable: 0",
        "      maxSurge: 1",
        "  template:",
        "    metadata:",
        "      labels:",
        f"        app.kubernetes.io/name: {yaml_text(name)}",
        "    spec:",
        *_comment(
            6,
            "Set no variables for each Service of the namespace: those of a Service named penstock "
            "would begin with PENSTOCK_.",
        ),
        "      enableServiceLinks: false",
        *_comment(
            6,
            f"drain_delay ({server.drain_delay:g} s), drain ({server.drain_timeout:g} s), and "
            f"{END_MARGIN_SECONDS:g} s for the processes to exit.  No preStop sleep: drain_delay "
            "replaces it, and requests are served meanwhile.",
        ),
        f"      terminationGracePeriodSeconds: {math.ceil(start.end_seconds)}",
        "      securityContext:",
        "        runAsNonRoot: true",
        f"        runAsUser: {USER}",
        "      containers:",
        "        - name: penstock",
        f"          image: {yaml_text(description.image)}",
        *_comment(
            10,
            "Set whole CPUs, and the same number as limit: a container that is limited by a quota sees "
            "all cores of the node, and starts a thread for each.",
        ),
        "          command:",
        *(f"            - {yaml_text(_unexpanded(word))}" for word in ("penstock", *start.words)),
        "          ports:",
        "            - name: http",
        f"              containerPort: {server.port}",
        "          securityContext:",
        "            allowPrivilegeEscalation: false",
        *_comment(10, f"Time to load the models, {LOAD_SECONDS} s at most; the other probes start after it."),
        *_probe("startupProbe", "/readyz", scheme, period=STARTUP_PERIOD, failures=LOAD_SECONDS // STARTUP_PERIOD),
        *_comment(
            10,
            "A pod that is not ready gets no requests after 2 s.  A terminating pod is removed by the "
            f"cluster itself; its drain_delay ({server.drain_delay:g} s) lets it respond until then.",
        ),
        *_probe("readinessProbe", "/readyz", scheme, period=1, failures=2),
        *_comment(10, "A process that does not respond for 30 s is restarted.  A busy process responds."),
        *_probe("livenessProbe", "/livez", scheme, period=10, failures=3),
    ]


def _probe(kind: str, path: str, scheme: str, *, period: int, failures: int) -> list[str]:
    return [
        f"          {kind}:",
        "            httpGet:",
        f"              path: {path}",
        "              port: http",
        f"              scheme: {scheme}",
        f"            periodSeconds: {period}",
        f"            failureThreshold: {failures}",
        *_comment(12, "A model that uses all cores may delay a response for a moment."),
        "            timeoutSeconds: 5",
    ]


def _service(description: ClusterDescription) -> list[str]:
    name, secure = description.start.name, description.start.server.tls_cert is not None
    return [
        "apiVersion: v1",
        "kind: Service",
        *_metadata(name),
        "spec:",
        "  selector:",
        f"    app.kubernetes.io/name: {yaml_text(name)}",
        "  ports:",
        f"    - name: {'https' if secure else 'http'}",
        f"      port: {443 if secure else 80}",
        "      targetPort: http",
    ]


def _budget(description: ClusterDescription) -> list[str]:
    name = description.start.name
    return [
        "apiVersion: policy/v1",
        "kind: PodDisruptionBudget",
        *_metadata(name),
        "spec:",
        *_comment(2, "Nodes are drained one pod at a time.  With 0 they could not be drained at all."),
        "  maxUnavailable: 1",
        "  selector:",
        "    matchLabels:",
        f"      app.kubernetes.io/name: {yaml_text(name)}",
    ]


def _metadata(name: str) -> list[str]:
    quoted = yaml_text(name)
    return ["metadata:", f"  name: {quoted}", "  labels:", f"    app.kubernetes.io/name: {quoted}"]


def _comment(indent: int, words: str) -> list[str]:
    return [f"{' ' * indent}{line}" for line in because(words)]


def _unexpanded(word: str) -> str:
    """`word` for a command, where Kubernetes puts a variable in place of ``$(NAME)``, and one dollar sign for two."""
    return word.replace("$", "$$")
