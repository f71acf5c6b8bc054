"""Each rule of the layers catches an offender, in a tree of a few lines; what keeps it is the package itself."""

from __future__ import annotations

from layer_rules import asks_the_time, file_of, import_graph, imported, shared_names


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
