"""The order to be a worker, as tests of the worker's side write it."""

from __future__ import annotations

import os
import pickle
import sys

import msgspec

from penstock.codec.formats import Codec
from penstock.config import LogOptions, StageOptions
from penstock.transport.messages import Launch, StageRef


def launch_of(*, setup=None, **fields):
    """A Launch for a plain stage without a batch policy, but for `fields`."""
    order = Launch(
        service="s",
        stage="embed",
        index=1,
        count=3,
        gpus=(),
        ref=StageRef("", ""),
        setup=pickle.dumps(setup or {}),
        sys_path=[os.fsencode(entry) for entry in sys.path],
        batched=False,
        max_size=4,
        options=StageOptions(),
        first=True,
        last=True,
        behind="",
        crossing=Codec.PICKLE,
        validate=False,
        validate_results=False,
        allow_nan=False,
        logs=LogOptions(),
        served=False,
    )
    return msgspec.structs.replace(order, **fields)
