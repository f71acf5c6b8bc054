"""Threads that meet a type at the same moment, each in a process of its own: where it goes wrong, the process ends."""

import subprocess
import sys

import pytest

from night import histories

MEETINGS = """
import dataclasses, sys, threading
import msgspec
from penstock.artifact.strict_json import read_strictly
from penstock.codec.decode import ItemDecoder
from penstock.codec.formats import Codec
from penstock.codec.schema import json_schema
from penstock.codec.type_check import TypeCheck

DATA = b'{"schema": 1, "first": {"x": 1, "y": [2]}, "others": [{"x": 1, "y": [2]}]}'
PLAIN = {"schema": 1, "first": {"x": 1, "y": [2]}, "others": [{"x": 1, "y": [2]}]}

def new_struct():
    class Part(msgspec.Struct):
        x: "int"
        y: "list[int] | None" = None
    globals()["Part"] = Part
    class Whole(msgspec.Struct):
        schema: "int"
        first: "Part"
        others: "list[Part] | None" = None
    return Whole

def new_dataclass():
    @dataclasses.dataclass
    class Part:
        x: "int"
        y: "list[int] | None" = None
    globals()["Part"] = Part
    @dataclasses.dataclass
    class Whole:
        schema: "int"
        first: "Part"
        others: "list[Part] | None" = None
    return Whole

def decode(kind):
    assert ItemDecoder(kind).decode(Codec.JSON, DATA).first.x == 1

def check(kind):
    TypeCheck(kind).item(PLAIN)

def read(kind):
    read_strictly(DATA, kind, file="a", schemas=(1,), remedy="", check=lambda found: None)

def describe(kind):
    assert "Whole" in json_schema(kind)[1]

uses, new = [globals()[name] for name in sys.argv[1].split(",")], globals()[sys.argv[2]]
sys.setswitchinterval(1e-6)
for _ in range(int(sys.argv[3])):
    kind, gate, wrong = new(), threading.Barrier(3), []
    def meet(use):
        gate.wait()
        try:
            use(kind)
        except BaseException as error:
            wrong.append(error)
    threads = [threading.Thread(target=meet, args=(uses[i % len(uses)],)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
"""


@pytest.mark.parametrize("new", ["new_struct", "new_dataclass"])
@pytest.mark.parametrize("use", ["decode", "check", "read", "describe,decode", "describe,check"])
def test_threads_may_meet_a_type_at_the_same_moment(use, new):
    command = [sys.executable, "-c", MEETINGS, use, new, str(histories(300))]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


UNPACKING = """
import importlib, sys, threading
from penstock.codec.formats import Codec
from penstock.config import LogOptions, StageOptions
from penstock.transport import messages

sys.setswitchinterval(1e-6)
for _ in range(20):
    importlib.reload(messages)  # with classes that nobody has met
    launch = messages.Launch(
        "service", "stage", 0, 1, (), messages.StageRef("m", "q"), b"", [], True, 8, StageOptions(), True, True, True,
        True, False, LogOptions(), "", Codec.JSON, True,
    )
    packed, gate, same = messages.pack(launch), threading.Barrier(8), []
    def meet():
        gate.wait()
        same.append(messages.unpack(packed, messages.Launch) == launch)
    threads = [threading.Thread(target=meet) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == [True] * 8, same
"""


def test_workers_in_one_process_may_be_launched_at_the_same_moment():
    run = subprocess.run([sys.executable, "-c", UNPACKING], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
