"""How a stage's class is found again in another process, and what is said when it cannot be."""

from __future__ import annotations

import functools
import os
import sys
import types

import pytest

from penstock.errors import ConfigError
from penstock.transport.messages import StageRef
from penstock.worker import loading
from penstock.worker.loading import MAIN_NAME, ImportState, check_setup, import_target, pack_setup, reference
from penstock.worker.stage import Stage

SCRIPT = """
from penstock.worker.loading import ImportState
importing = ImportState.importing
class Model:
    class Inner: pass
name = __name__
if __name__ == "__main__":
    raise SystemExit("started itself again")
    class Guarded: pass
"""


@pytest.fixture
def main(monkeypatch):
    """A main script of our own in place of the test runner's; both its names are put back afterwards."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setitem(sys.modules, MAIN_NAME, module)
    return module


@pytest.fixture
def importable(tmp_path, monkeypatch):
    """Write a module that can be imported by the name given back."""

    def write(text, name):
        (tmp_path / f"{name}.py").write_text(text)
        return name

    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


# -- reference --------------------------------------------------------------------------------------------------------


def test_a_class_travels_as_module_and_qualname():
    assert reference(Stage) == StageRef("penstock.worker.stage", "Stage")
    assert reference(check_setup) == StageRef("penstock.worker.loading", "check_setup")


def test_a_nested_class_travels_with_its_outer_ones(importable):
    name = importable(SCRIPT, "penstock_test_nested")
    module = __import__(name)
    assert reference(module.Model.Inner) == StageRef(name, "Model.Inner")
    assert import_target(reference(module.Model.Inner)) is module.Model.Inner


def test_a_local_class_is_refused_with_the_two_ways_out():
    class Local(Stage): ...

    with pytest.raises(ConfigError, match=r"Local is defined inside a function.*top level of a module.*inline=True"):
        reference(Local)


TOP_LEVEL_LAMBDA = lambda x: x  # noqa: E731  # it is what people write


def test_a_lambda_is_refused():
    with pytest.raises(ConfigError, match=r"<lambda> is a lambda, .*define a function with `def` at the top level"):
        reference(lambda x: x)
    with pytest.raises(ConfigError, match=r"<lambda> is a lambda, "):
        reference(TOP_LEVEL_LAMBDA)


@pytest.mark.parametrize("target", [functools.partial(print), types.SimpleNamespace()], ids=["partial", "object"])
def test_an_object_without_a_name_is_refused(target):
    with pytest.raises(ConfigError, match=r"has no name, so a worker process cannot import it.*inline=True"):
        reference(target)


def test_a_class_that_its_module_calls_otherwise_is_refused(importable):
    module = __import__(importable(SCRIPT, "penstock_test_replaced"))
    original = module.Model
    module.Model = object()
    with pytest.raises(ConfigError, match="is not the object named Model in `penstock_test_replaced`"):
        reference(original)


def test_a_class_of_a_module_that_is_not_there_is_refused():
    orphan = type("Orphan", (), {"__module__": "penstock_test_nowhere", "__qualname__": "Orphan"})
    with pytest.raises(ConfigError, match="is not the object named Orphan in `penstock_test_nowhere`"):
        reference(orphan)


def in_main(main, name="Model"):
    found = type(name, (), {"__module__": "__main__", "__qualname__": name})
    setattr(main, name, found)
    return found


def test_a_class_of_the_main_script_travels_with_the_scripts_path(main, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    main.__file__ = str(script)
    assert reference(in_main(main)) == StageRef("__main__", "Model", main_path=os.fsencode(script.resolve()))


def test_a_class_of_a_main_module_travels_with_the_modules_name(main):
    main.__spec__ = types.SimpleNamespace(name="package.__main__")
    assert reference(in_main(main)) == StageRef("__main__", "Model", main_module="package.__main__")


@pytest.mark.parametrize("file", [None, "/nowhere/<stdin>"])
def test_a_class_of_a_notebook_is_refused(main, file):
    if file is not None:
        main.__file__ = file
    with pytest.raises(ConfigError, match=r"interactive session or notebook.*put it in a module, or use inline=True"):
        reference(in_main(main))


# -- load -------------------------------------------------------------------------------------------------------------


def test_the_main_script_is_imported_under_another_name_so_that_it_does_not_start_itself(main, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    model = import_target(StageRef("__main__", "Model", main_path=os.fsencode(script)))
    found = sys.modules["__main__"]
    assert found.name == MAIN_NAME
    assert found.Model is model
    assert sys.modules[MAIN_NAME] is found
    assert found.importing, "starting a service is refused meanwhile"
    assert not ImportState.importing


def test_a_main_module_is_imported_under_another_name(main, importable):
    name = importable(SCRIPT, "penstock_test_main_module")
    model = import_target(StageRef("__main__", "Model", main_module=name))
    assert sys.modules["__main__"].Model is model
    assert sys.modules["__main__"].name == MAIN_NAME


def test_a_class_that_exists_only_under_the_guard_is_not_found(main, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with pytest.raises(ConfigError, match='has no Guarded in the worker: is it defined only under `if __name__ == "__'):
        import_target(StageRef("__main__", "Guarded", main_path=os.fsencode(script)))


def test_an_import_that_fails_is_told_as_it_is_and_leaves_no_trace(importable):
    name = importable("1 / 0", "penstock_test_broken")
    with pytest.raises(ZeroDivisionError):
        import_target(StageRef(name, "Model"))
    assert not ImportState.importing


def test_pickles_of_the_main_scripts_classes_are_understood_under_both_names(main):
    loading.adopt_main()
    assert sys.modules[MAIN_NAME] is main


# -- setup ------------------------------------------------------------------------------------------------------------


class WithSetup(Stage):
    def setup(self, path, size=1): ...


@pytest.mark.parametrize("arguments", [{"path": 1}, {"path": 1, "size": 2}])
def test_arguments_that_fit_setup_pass(arguments):
    check_setup("embed", WithSetup, arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "missing a required argument: 'path'"),
        ({"path": 1, "colour": 2}, "got an unexpected keyword argument 'colour'"),
    ],
)
def test_arguments_that_do_not_fit_setup_are_refused_with_those_that_it_takes(arguments, reason):
    with pytest.raises(ConfigError) as refused:
        check_setup("embed", WithSetup, arguments)
    takes = "it takes path, size, passed as penstock.stage(..., setup={...}), or to penstock worker run as --setup"
    assert str(refused.value) == f"stage 'embed': setup() {reason}; {takes}"


def with_setup(setup):
    return type("Embed", (Stage,), {"setup": setup})


@pytest.mark.parametrize("setup", [staticmethod(lambda path: 1), classmethod(lambda cls, path: 1)])
def test_a_setup_that_needs_no_object_takes_the_arguments_too(setup):
    check_setup("embed", with_setup(setup), {"path": 1})
    with pytest.raises(ConfigError, match="it takes path, passed as"):
        check_setup("embed", with_setup(setup), {})


def test_a_setup_without_self_is_told():
    with pytest.raises(ConfigError, match=r"stage 'embed': setup has no parameter `self`: write `def setup\(self\)`"):
        check_setup("embed", with_setup(lambda: 1), {})
    with pytest.raises(ConfigError, match=r"; it takes no arguments$"):
        check_setup("embed", with_setup(lambda self: 1), {"path": 1})


@pytest.mark.parametrize("target", [Stage, print])
def test_arguments_for_a_stage_without_setup_are_refused(target):
    check_setup("embed", target, {})
    with pytest.raises(ConfigError, match=r"stage 'embed' has no setup method for the arguments \['a'\]"):
        check_setup("embed", target, {"a": 1})


class Loads:
    def load(self, path="x"):
        return path

    __call__ = load


@pytest.mark.parametrize("setup", [Loads().load, Loads(), functools.partial(Loads().load), dict, {}.update])
def test_what_is_no_method_is_called_without_the_object_of_the_stage(setup):
    check_setup("embed", with_setup(setup), {})
    check_setup("embed", with_setup(setup), {"path": "y"})


def test_setup_arguments_travel_as_plain_values():
    import pickle

    assert pickle.loads(pack_setup("embed", {"path": "x", "sizes": [1, 2]})) == {"path": "x", "sizes": [1, 2]}


def test_a_setup_argument_that_cannot_travel_is_named():
    with pytest.raises(ConfigError, match="stage 'embed': setup argument 'model' cannot be sent to a worker"):
        pack_setup("embed", {"path": "x", "model": lambda: None})
