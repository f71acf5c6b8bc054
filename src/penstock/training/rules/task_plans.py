"""Write the payloads of a run as JSON, and tell two plans apart.

Contract
--------
* What is planned comes out of its text as it went in; anything else is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from penstock.errors import ConfigError
from penstock.training.rules.json_text import json_text
from penstock.training.rules.task_rules import KINDS, task_name
from penstock.training.rules.task_states import Phase
from penstock.training.task_store import RunPlan

PlanTexts: TypeAlias = Mapping[Phase, Sequence[str]]
"""The JSON of each payload, by kind and place."""

SAVE_PAYLOAD: Final = "null"
LONGEST_SHOWN: Final = 80


def plan_texts(plan: RunPlan) -> dict[Phase, list[str]]:
    """The JSON of every task, that of saving too where the run publishes.

    Raises:
        ConfigError: a payload does not come out of JSON as it went in.
    """
    texts: dict[Phase, list[str]] = {}
    for kind in KINDS[:-1]:
        payloads = plan.tasks.get(kind, ())
        texts[kind] = [_payload_text(payload, kind, place) for place, payload in enumerate(payloads)]
    texts[Phase.SAVE] = [] if plan.publish_to is None else [SAVE_PAYLOAD]
    return texts


def plan_difference(
    kept: PlanTexts, kept_publish_to: str | None, new: PlanTexts, new_publish_to: str | None
) -> str | None:
    """How a plan differs from the one that is kept, as a sentence; None where it is the same."""
    for kind in KINDS[:-1]:  # the save task is there or not by publish_to
        before, after = kept[kind], new[kind]
        if len(before) != len(after):
            return f"it has {len(before)} {kind.value} tasks, not {len(after)}"
        for place, (old, text) in enumerate(zip(before, after, strict=True)):
            if old != text:
                return f"its task {task_name(kind, place)} is {_shown(old)}, not {_shown(text)}"
    if kept_publish_to != new_publish_to:
        return f"it publishes to {_place(kept_publish_to)}, not to {_place(new_publish_to)}"
    return None


def _payload_text(payload: Any, kind: Phase, place: int) -> str:
    what = f"the payload of task {task_name(kind, place)}"
    text = json_text(payload, what)
    read = json.loads(text)
    if read != payload:
        raise ConfigError(
            f"{what} changes when it is written as JSON and read again: {_shown(repr(payload))} becomes "
            f"{_shown(text)}; use lists instead of tuples"
        )
    return text


def _shown(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


def _place(publish_to: str | None) -> str:
    return "no model directory" if publish_to is None else publish_to
