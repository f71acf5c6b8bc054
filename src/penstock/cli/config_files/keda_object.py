"""Write the ScaledObject by which KEDA scales a Deployment by `penstock_backlog_seconds`.  Pure.

The fields are those of KEDA 2.9 and later: `metricType` of a trigger, `ignoreNullValues` of Prometheus.

Contract
--------
* There are so many replicas that each has at most `target` seconds of work in hand, between `least` and `most`.
* Where Prometheus does not know, for whatever reason, there are `fallback` of them: nobody scales down for want of
  numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.cli.config_files.layout import because
from penstock.cli.config_files.started import check_name
from penstock.cli.config_files.yaml_text import yaml_text
from penstock.config import check_service_name
from penstock.errors import ConfigError

METRIC: Final = "penstock_backlog_seconds"
ASKED_SECONDS: Final = 15
"""As often as the autoscaler of Kubernetes decides."""
FAILURES: Final = 3
CALM_SECONDS: Final = 300
SHARE_OF_TIMEOUT: Final = 0.1
"""What is in hand may take this part of what a request may wait, so that there is time to start another replica."""
WITHOUT_TIMEOUT: Final = 6.0
"""The target, in seconds, where a request may wait for ever."""


@dataclass(frozen=True, slots=True)
class ScalingDescription:
    """What is scaled, by what, and within which bounds."""

    name: str
    """The Deployment."""
    service: str
    """The service whose backlog it is: the label `service` of the metric."""
    prometheus: str
    """The URL of Prometheus."""
    target: float
    """Seconds of work in hand for each replica."""
    timeout: float
    """Seconds that a request may take."""
    least: int
    most: int
    fallback: int

    def __post_init__(self) -> None:
        check_name("--name", self.name)
        check_service_name(self.service)
        if not self.prometheus.startswith(("http://", "https://")) or not self.prometheus.isprintable():
            raise ConfigError(f"--prometheus must be a URL, http://… or https://…, got {self.prometheus!r}")
        if not 0 < self.target < self.timeout:
            raise ConfigError(
                f"--target must be more than 0 s and less than timeout ({self.timeout:g} s), or requests "
                f"miss their deadline before a new replica is ready; got {self.target:g}"
            )
        if self.least < 1:
            raise ConfigError(
                "--min-replicas must be at least 1, because without a replica there is no backlog "
                f"to scale by, got {self.least}"
            )
        if self.most < self.least:
            raise ConfigError(f"--max-replicas must be at least --min-replicas ({self.least}), got {self.most}")
        if not self.least <= self.fallback <= self.most:
            raise ConfigError(f"--replicas must be from {self.least} to {self.most}, got {self.fallback}")


def usual_target(timeout: float) -> float:
    """The seconds of work in hand that a replica should have."""
    return min(WITHOUT_TIMEOUT, timeout * SHARE_OF_TIMEOUT) if timeout > 0 else WITHOUT_TIMEOUT


def scaled_object(description: ScalingDescription) -> str:
    """The whole object."""
    query = f'sum({METRIC}{{service="{description.service}"}})'
    lines = [
        "# Replicas of Penstock by KEDA, made by `penstock generate keda`.  Run it again when an option changes.",
        "apiVersion: keda.sh/v1alpha1",
        "kind: ScaledObject",
        "metadata:",
        f"  name: {yaml_text(description.name)}",
        "spec:",
        "  scaleTargetRef:",
        f"    name: {yaml_text(description.name)}",
        *_comment(2, "The interval of the Kubernetes autoscaler."),
        f"  pollingInterval: {ASKED_SECONDS}",
        *_comment(2, "Not 0: without a replica there is no backlog to scale by."),
        f"  minReplicaCount: {description.least}",
        f"  maxReplicaCount: {description.most}",
        *_comment(
            2,
            f"If Prometheus has failed {FAILURES} times or has no backlog, run the usual number of replicas.",
        ),
        "  fallback:",
        f"    failureThreshold: {FAILURES}",
        f"    replicas: {description.fallback}",
        "  advanced:",
        "    horizontalPodAutoscalerConfig:",
        "      behavior:",
        "        scaleDown:",
        *_comment(10, "A replica is removed only after this time without need, because loading a model takes time."),
        f"          stabilizationWindowSeconds: {CALM_SECONDS}",
        "  triggers:",
        "    - type: prometheus",
        *_comment(6, "The replicas share the sum; a fallback is only possible with this type."),
        "      metricType: AverageValue",
        "      metadata:",
        f"        serverAddress: {yaml_text(description.prometheus)}",
        *_comment(8, "Estimated time to complete all items in flight, over all replicas."),
        f"        query: {yaml_text(query)}",
        *_comment(
            8,
            f"Seconds for each replica: well below timeout ({description.timeout:g} s), so that a new "
            "replica is ready before requests miss their deadline.",
        ),
        f"        threshold: {yaml_text(f'{description.target:g}')}",
        *_comment(8, "A missing value is a failure, not 0: replicas that Prometheus cannot reach are not idle."),
        f"        ignoreNullValues: {yaml_text('false')}",
        "",
    ]
    return "\n".join(lines)


def _comment(indent: int, words: str) -> list[str]:
    return [f"{' ' * indent}{line}" for line in because(words)]
