"""Each rule of the layers catches an offender, in a tree of a few lines, and lets pass what keeps it."""

from __future__ import annotations

import pytest

from layer_rules import (
    asks_the_time,
    circles,
    compiled_bases,
    file_of,
    import_graph,
    missing_modules,
    named_as_libraries,
    read_compiled,
    repeated_docstrings,
    shared_basenames,
    shared_names,
    without,
)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import penstock", {"__init__.py"}),
        ("from penstock import Service", {"__init__.py"}),
        ("from penstock import config", {"config.py"}),
        ("import penstock.core.item", {"core/item.py"}),
        ("from penstock.core.item import Item", {"core/item.py"}),
        ("from penstock.core import item", {"core/item.py"}),
        ("from penstock.core import Item", {"core/__init__.py"}),
        ("from penstock import config, Service", {"config.py", "__init__.py"}),
        ("import asyncio, numpy.linalg", set()),
    ],
)
def test_an_import_leads_to_the_file_it_means(source, found):
    tree = dict.fromkeys(("__init__.py", "config.py", "core/__init__.py", "core/item.py"), "")
    assert import_graph({**tree, "a.py": source})["a.py"] == found


def test_a_name_of_no_file_of_ours_leads_nowhere():
    assert file_of("numpy.linalg", {"numpy/linalg.py"}) is None
    assert file_of("penstock.gone", {"core/item.py"}) is None


@pytest.mark.parametrize(
    ("tree", "found"),
    [
        ({"a.py": "import penstock.b", "b.py": ""}, set()),
        ({"a.py": "import penstock.b", "b.py": "import penstock.a"}, {("a.py", "b.py")}),
        ({"a.py": "import penstock.a"}, {("a.py",)}),
        ({"a.py": "import penstock.b", "b.py": "def f():\n    from penstock.a import g"}, {("a.py", "b.py")}),
        ({"a.py": "import penstock.b", "b.py": "if TYPE_CHECKING:\n    from penstock.a import A"}, {("a.py", "b.py")}),
        (
            {"c.py": "import penstock.b", "b.py": "import penstock.a", "a.py": "import penstock.c"},
            {("a.py", "c.py", "b.py")},
        ),
        ({"__init__.py": "from penstock.a import A", "a.py": "import penstock"}, {("__init__.py", "a.py")}),
        ({"__init__.py": "from penstock.a import A", "a.py": "from penstock import B"}, {("__init__.py", "a.py")}),
        ({"__init__.py": "from penstock.a import A", "a.py": "import penstock.b", "b.py": ""}, set()),
        ({"a.py": "import penstock.b, penstock.c", "b.py": "import penstock.c", "c.py": ""}, set()),
        (
            {"a.py": "import penstock.b", "b.py": "import penstock.a, penstock.c", "c.py": "import penstock.b"},
            {("a.py", "b.py"), ("b.py", "c.py")},
        ),
    ],
)
def test_a_circle_of_imports_is_found(tree, found):
    assert circles(import_graph(tree)) == found


def test_a_circle_less_one_of_its_imports_is_none():
    graph = import_graph({"a.py": "import penstock.b", "b.py": "import penstock.a"})
    assert circles(without(graph, [("b.py", "a.py")])) == set()


def test_two_files_of_one_basename_are_found():
    files = ["core/lanes.py", "server/lanes.py", "core/__init__.py", "server/__init__.py", "worker/__main__.py"]
    assert shared_basenames([*files, "__main__.py", "lane.py"]) == {"lanes.py": ["core/lanes.py", "server/lanes.py"]}


def test_a_file_named_as_a_library_is_found():
    files = ["codec/numpy.py", "codec/numpy_.py", "codec/pickle.py", "worker/__main__.py", "core/item.py"]
    assert named_as_libraries(files, {"numpy"}) == {"codec/numpy.py", "codec/pickle.py"}


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ("class Refused: ...", "class Refused(Exception): ...", {"Refused"}),
        ("def plain(): ...", "async def plain(): ...", {"plain"}),
        ("def plain(): ...", "class plain: ...", {"plain"}),
        ("def plain(): ...", "if True:\n    def plain(): ...", {"plain"}),
        ("def plain(): ...", "try:\n    pass\nexcept ImportError:\n    def plain(): ...", {"plain"}),
        ("def main(): ...", "def main(): ...", set()),
        ("def _plain(): ...", "def _plain(): ...", set()),
        ("class A:\n    def plain(self): ...", "class B:\n    def plain(self): ...", set()),
        ("def plain(): ...", "from penstock.a import plain", set()),
        ("def plain(): ...\ndef plain(): ...", "", set()),
    ],
)
def test_two_things_of_one_public_name_are_found(one, other, found):
    assert set(shared_names({"a.py": one, "b.py": other})) == found


DUTY = 'class Duty(Protocol):\n    def act(self):\n        """Act now."""\n'


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('class Actor:\n    def act(self):\n        """Act now."""', {"Actor.act"}),
        ('class Actor:\n    async def act(self):\n        """Act now."""', {"Actor.act"}),
        ('class Actor:\n    def act(self):\n        """Act now, on the loop."""', set()),
        ('class Actor:\n    def play(self):\n        """Act now."""', set()),
        ("class Actor:\n    def act(self): ...", set()),
        (DUTY, set()),
    ],
)
def test_a_docstring_that_repeats_a_protocol_is_found(source, found):
    assert repeated_docstrings({"a.py": DUTY, "b.py": source}) == found


BASES = """
from enum import StrEnum
from typing import Protocol, Generic
from penstock.errors import PenstockError
class Move: ...
class Row(Generic[T]): ...
class Duty(Protocol): ...
class Reason(StrEnum): ...
class Refused(PenstockError): ...
class Late(TimeoutError): ...
"""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from penstock.core.item import Move\nclass A(Move): ...", {"a.py:A": "core/item.py:Move"}),
        ("from penstock.core.item import Move as M\nclass A(M): ...", {"a.py:A": "core/item.py:Move"}),
        ("import penstock.core.item\nclass A(penstock.core.item.Move): ...", {"a.py:A": "core/item.py:Move"}),
        ("from penstock.core import item\nclass A(item.Move): ...", {"a.py:A": "core/item.py:Move"}),
        ("import penstock.core.item as it\nclass A(it.Move): ...", {"a.py:A": "core/item.py:Move"}),
        ("from penstock.core import Move\nclass A(Move): ...", {"a.py:A": "core/item.py:Move"}),
        ("from penstock.core.item import Row\nclass A(Row[int]): ...", {"a.py:A": "core/item.py:Row"}),
        ("from penstock.core.item import Duty\nclass A(Duty): ...", {"a.py:A": "core/item.py:Duty"}),
        ("from penstock.between import B\nclass A(B): ...", {"a.py:A": "core/item.py:Move"}),
        ("def f():\n    from penstock.core.item import Move\n    class A(Move): ...", {"a.py:A": "core/item.py:Move"}),
        ("from penstock.core.item import Reason\nclass A(Reason): ...", {}),
        ("from penstock.core.item import Refused\nclass A(Refused): ...", {}),
        ("from penstock.core.item import Late\nclass A(Late): ...", {}),
        ("from penstock.errors import PenstockError\nclass A(PenstockError): ...", {}),
        ("from penstock.core.item import Move\nclass A:\n    move: Move", {}),
        ("from elsewhere import Move\nclass A(Move): ...", {}),
        ("class Move: ...\nclass A(Move): ...", {}),
        ("class A(Unknown, metaclass=Meta): ...\nclass B(make()): ...", {}),
    ],
)
def test_an_interpreted_class_below_a_compiled_one_is_found(source, found):
    tree = {
        "errors.py": "class PenstockError(Exception): ...",
        "core/__init__.py": "from penstock.core.item import Move",
        "core/item.py": BASES,
        "core/queue.py": "from penstock.core.item import Move\nclass Compiled(Move): ...",
        "between.py": "from penstock.core.item import Move\nclass B(Move): ...",
        "a.py": source,
    }
    offences = compiled_bases(tree, ["core/item.py", "core/queue.py"])
    assert offences == {"between.py:B": "core/item.py:Move", **found}


def test_a_module_to_compile_that_is_not_there_is_found():
    assert missing_modules({"core/item.py": ""}, ["core/item.py", "core/gone.py"]) == {"core/gone.py"}


def test_the_list_of_what_is_compiled_is_read_from_setup():
    assert "core/item.py" in read_compiled()


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.monotonic()",
        "import time as t\nt.monotonic()",
        "from time import monotonic\nmonotonic()",
        "from time import monotonic as now\nnow()",
        "import time\ndef f(clock=time.monotonic): ...",
        "loop.call_later(1, f)",
        "self._loop.call_at(1, f)",
        "asyncio.get_running_loop().call_later(1, f)",
        "self.clock.loop.call_later(1, f)",
        "later = loop.call_later",
        "import asyncio\nasync def f():\n    async with asyncio.timeout(1): ...",
        "from asyncio import timeout\nasync def f():\n    async with timeout(1): ...",
        "import asyncio\nasync def f():\n    await asyncio.wait_for(g(), 1)",
        "import asyncio\nasync def f():\n    await asyncio.wait(x, timeout=1)",
        "from asyncio import wait\nasync def f():\n    await wait(x, timeout=limit)",
    ],
)
def test_a_look_at_the_clock_is_found(source):
    for file in ("core/a.py", "runtime/a.py", "server/http1/a.py", "server/app.py", "server/asgi.py", "calls.py"):
        assert set(asks_the_time({file: source})) == {file}
    assert asks_the_time({"hosting/loop_clock.py": source, "server/serve.py": source, "cli/calls.py": source}) == {}


@pytest.mark.parametrize(
    "source",
    [
        "self._clock.call_later(1, f)",
        "clock.call_at(1, f)",
        "engine.clock.call_later(1, f)",
        "now = self._clock.now()",
        "import time\ntime.time()",
        "import asyncio\nasync def f():\n    await asyncio.wait(x, return_when=asyncio.FIRST_COMPLETED)",
        "import asyncio\nasync def f():\n    await asyncio.wait(x, timeout=None)",
        "class Clock(Protocol):\n    def call_later(self, delay, callback): ...",
        "timeout = 1\nf(timeout)",
        "self.wait_for(1)",
    ],
)
def test_our_own_clock_and_what_waits_for_no_time_are_let_pass(source):
    assert asks_the_time({"runtime/a.py": source}) == {}
