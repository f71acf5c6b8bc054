"""Compile the path of a request, where there is a C compiler.

The modules below are ordinary Python, and run as they are in an editable install: that is how they are developed,
tested and stepped through.  In any other install mypyc makes C extensions of them, which halves what a request costs
in the coordinator (`docs/explanation/performance.md`).  ``PENSTOCK_COMPILE=0`` leaves them as they are; where nothing
can be compiled they stay so too.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from setuptools import setup

COMPILED = [
    "codec/decode.py",
    "codec/encode.py",
    "core/admission.py",
    "core/batching.py",
    "core/counters.py",
    "core/deadlines.py",
    "core/item.py",
    "core/outcome.py",
    "core/supervision.py",
    "runtime/engine.py",
    "runtime/flow.py",
    "runtime/stage.py",
    "runtime/worker.py",
    "server/answers.py",
    "server/app.py",
    "server/batch_route.py",
    "server/bodies.py",
    "server/connection.py",
    "server/exchange.py",
    "server/framing_rules.py",
    "server/messages.py",
    "server/routes.py",
    "server/shared.py",
    "server/unread.py",
    "transport/framing.py",
    "worker/bisect.py",
    "worker/runner.py",
]

BUILDING = {"bdist_wheel", "build", "build_ext", "install"}
"""Commands that make something to install; an editable install and a look at the metadata are none."""


def extensions() -> list[Any]:
    """The compiled modules, or none where they are not wanted or cannot be had."""
    if os.environ.get("PENSTOCK_COMPILE") == "0" or not BUILDING.intersection(sys.argv):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        return []
    made: list[Any] = mypycify([f"src/penstock/{name}" for name in COMPILED], opt_level="3", debug_level="1")
    for extension in made:
        extension.optional = True  # without a C compiler the modules stay Python
    return made


setup(ext_modules=extensions())
