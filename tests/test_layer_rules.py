"""Each rule of the layers catches an offender, in a tree of a few lines, and lets pass what keeps it."""

from __future__ import annotations

from layer_rules import (
    asks_the_time,
    circles,
    compiled_bases,
    file_of,
    import_graph,
    imported,
    missing_modules,
    read_compiled,
    shared_names,
)


def test_every_import_is_found_wherever_it_stands():
    files = ("codec/__init__.py", "codec/pickle_.py", "config.py", "errors.py", "__init__.py")
    for source, found in {
        "import a.b, c": {"a.b", "c"},
        "from a.b import c": {"a.b"},
        "from penstock import errors, config": {"penstock.errors", "penstock.config"},
        "from penstock.codec import pickle_": {"penstock.codec.pickle_"},
        "def f():\n    import late": {"late"},
        "if TYPE_CHECKING:\n    import never\nelse:\n    import always": {"never", "always"},
        "try:\n    import a\nexcept ImportError:\n    import b": {"a", "b"},
    }.items():
        assert imported(source, files) == found, source


def test_an_import_leads_to_the_file_it_means():
    tree = dict.fromkeys(("__init__.py", "config.py", "core/__init__.py", "core/item.py"), "")
    for source, found in {
        "import penstock": {"__init__.py"},
        "import penstock.core.item": {"core/item.py"},
        "from penstock.core.item import Item": {"core/item.py"},
        "from penstock.core import item": {"core/item.py"},
        "from penstock.core import Item": {"core/__init__.py"},
        "from penstock import config, Service": {"config.py", "__init__.py"},
        "import asyncio, numpy.linalg": set(),
    }.items():
        assert import_graph({**tree, "a.py": source})["a.py"] == found, source
    assert file_of("penstock.gone", {"core/item.py"}) is None


def test_a_circle_of_imports_is_found():
    for tree, found in (
        ({"a.py": "import penstock.b, penstock.c", "b.py": "import penstock.c", "c.py": ""}, set()),
        ({"__init__.py": "from penstock.a import A", "a.py": "import penstock.b", "b.py": ""}, set()),
        ({"a.py": "import penstock.a"}, {("a.py",)}),
        ({"a.py": "import penstock.b", "b.py": "def f():\n    from penstock.a import g"}, {("a.py", "b.py")}),
        ({"a.py": "import penstock.b", "b.py": "if TYPE_CHECKING:\n    from penstock.a import A"}, {("a.py", "b.py")}),
        ({"__init__.py": "from penstock.a import A", "a.py": "from penstock import B"}, {("__init__.py", "a.py")}),
        (
            {"c.py": "import penstock.b", "b.py": "import penstock.a", "a.py": "import penstock.c"},
            {("a.py", "c.py", "b.py")},
        ),
        (
            {"a.py": "import penstock.b", "b.py": "import penstock.a, penstock.c", "c.py": "import penstock.b"},
            {("a.py", "b.py"), ("b.py", "c.py")},
        ),
    ):
        assert circles(import_graph(tree)) == found, tree


def test_two_things_of_one_public_name_are_found_where_they_share_a_layer():
    for one, other in (
        ("class Refused: ...", "class Refused(Exception): ..."),
        ("def plain(): ...", "async def plain(): ..."),
        ("def plain(): ...", "class plain: ..."),
        ("def plain(): ...", "try:\n    pass\nexcept ImportError:\n    def plain(): ..."),
    ):
        assert len(shared_names({"core/a.py": one, "core/b.py": other})) == 1, (one, other)
        assert shared_names({"core/a.py": one, "codec/b.py": other, "c.py": other}) == {}, (one, other)
    for one, other in (
        ("def main(): ...", "def main(): ..."),
        ("def _plain(): ...", "def _plain(): ..."),
        ("class A:\n    def plain(self): ...", "class B:\n    def plain(self): ..."),
        ("def plain(): ...", "from penstock.core.a import plain"),
    ):
        assert shared_names({"core/a.py": one, "core/b.py": other}) == {}, (one, other)


BASES = """
from enum import StrEnum
from typing import Protocol, Generic
from penstock.errors import PenstockError
class Move: ...
class Row(Generic[T]): ...
class Reason(StrEnum): ...
class Refused(PenstockError): ...
class Late(TimeoutError): ...
"""


def test_an_interpreted_class_below_a_compiled_one_is_found():
    tree = {
        "errors.py": "class PenstockError(Exception): ...",
        "core/__init__.py": "from penstock.core.item import Move",
        "core/item.py": BASES,
        "core/queue.py": "from penstock.core.item import Move\nclass Compiled(Move): ...",
        "between.py": "from penstock.core.item import Move\nclass B(Move): ...",
    }
    for source, base in {
        "from penstock.core.item import Move as M\nclass A(M): ...": "Move",
        "import penstock.core.item\nclass A(penstock.core.item.Move): ...": "Move",
        "from penstock.core import item\nclass A(item.Move): ...": "Move",
        "from penstock.core import Move\nclass A(Move): ...": "Move",
        "from penstock.core.item import Row\nclass A(Row[int]): ...": "Row",
        "from penstock.between import B\nclass A(B): ...": "Move",
        "def f():\n    from penstock.core.item import Move\n    class A(Move): ...": "Move",
        "from penstock.core.item import Reason\nclass A(Reason): ...": "",
        "from penstock.core.item import Refused\nclass A(Refused): ...": "",
        "from penstock.core.item import Late\nclass A(Late): ...": "",
        "from penstock.core.item import Move\nclass A:\n    move: Move": "",
        "from elsewhere import Move\nclass A(Move): ...": "",
        "class Move: ...\nclass A(Move): ...": "",
        "class A(Unknown, metaclass=Meta): ...\nclass B(make()): ...": "",
    }.items():
        found = compiled_bases({**tree, "a.py": source}, ["core/item.py", "core/queue.py"])
        mine = {"a.py:A": f"core/item.py:{base}"} if base else {}
        assert found == {"between.py:B": "core/item.py:Move", **mine}, source


def test_a_module_to_compile_that_is_not_there_is_found():
    assert "core/item.py" in read_compiled()
    assert missing_modules({"core/item.py": ""}, ["core/item.py", "core/gone.py"]) == {"core/gone.py"}


def test_a_look_at_the_clock_is_found_where_the_time_is_told():
    for source in (
        "import time as t\nt.monotonic()",
        "from time import monotonic as now\nnow()",
        "import time\ndef f(clock=time.monotonic): ...",
        "loop.call_later(1, f)",
        "self._loop.call_at(1, f)",
        "self.clock.loop.call_later(1, f)",
        "later = loop.call_later",
        "from asyncio import timeout\nasync def f():\n    async with timeout(1): ...",
        "import asyncio\nasync def f():\n    await asyncio.wait_for(g(), 1)",
        "import asyncio\nasync def f():\n    await asyncio.wait(x, timeout=1)",
    ):
        for file in ("core/a.py", "runtime/a.py", "server/http1/a.py", "server/app.py", "server/asgi.py", "calls.py"):
            assert set(asks_the_time({file: source})) == {file}, source
        elsewhere = dict.fromkeys(("hosting/loop_clock.py", "server/serve.py", "cli/calls.py"), source)
        assert asks_the_time(elsewhere) == {}, source


def test_our_own_clock_and_what_waits_for_no_time_are_let_pass():
    for source in (
        "self._clock.call_later(1, f)",
        "engine.clock.call_at(1, f)",
        "now = self._clock.now()",
        "import time\ntime.time()",
        "import asyncio\nasync def f():\n    await asyncio.wait(x, timeout=None)",
        "class Clock(Protocol):\n    def call_later(self, delay, callback): ...",
        "timeout = 1\nf(timeout)",
        "self.wait_for(1)",
    ):
        assert asks_the_time({"runtime/a.py": source}) == {}, source
