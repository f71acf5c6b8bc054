"""A run of tests does not begin on a part of a build.

An install that could not be compiled says why when it serves.  A build takes in the files of Swagger UI.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from served import PENSTOCK, Program, write_module

ROOT = Path(__file__).parents[1]
COMPILED = re.findall(r'^    "(\S+\.py)",$', (ROOT / "setup.py").read_text(), re.MULTILINE)


def lay_out(folder, extensions):
    """Put a package into `folder` in which these modules, and no others, are extensions."""
    for name in {*COMPILED, *extensions, "__init__.py"}:
        source = folder / "penstock" / name
        source.parent.mkdir(parents=True, exist_ok=True)
        source.touch()
        if name in extensions:
            source.with_suffix(EXTENSION_SUFFIXES[0]).touch()


def test_a_run_over_a_part_of_a_build_does_not_begin(tmp_path):
    lay_out(tmp_path, [*COMPILED[1:], "errors.py"])
    nothing = ROOT / "tests" / "night.py"  # a file with no test, below the conftest
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", str(nothing)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"not compiled ['{COMPILED[0]}'], compiled without being in setup.py's list ['errors.py']\n" in run.stderr


# -- what could not be compiled ---------------------------------------------------------------------------------------

COMPILERS = {
    "no mypyc": "raise ImportError('no mypyc here')",
    "types": "def mypycify(paths, **_):\n    raise SystemExit(1)",
    "a file in the way": "def mypycify(paths, **_):\n    raise NotADirectoryError('.mypy_cache')",
    "no C compiler": (
        "from setuptools import Extension\n"
        "def mypycify(paths, **_):\n"
        "    return [Extension('penstock.core.item', ['broken.c'])]"
    ),
    "a long command": (
        "from setuptools import Extension\n"
        "from setuptools.command.build_ext import build_ext\n"
        "def run(self):\n"
        "    raise RuntimeError('gcc -O3' + ' -Wall' * 200 + '\\nreturned 1.')\n"
        "def mypycify(paths, **_):\n"
        "    build_ext.run = run\n"
        "    return [Extension('penstock.core.item', ['broken.c'])]"
    ),
}
"""What stands for `mypyc.build`, which takes more than a minute by itself."""
ONE_PART = """
from setuptools import Extension
def mypycify(paths, **_):
    return [Extension('penstock.part', ['part.c'])]
"""
PART = """
#include <Python.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "part", 0, -1, 0};
PyMODINIT_FUNC PyInit_part(void) {
    PyObject *module = PyModule_Create(&definition);
    PyModule_AddIntConstant(module, "VALUE", %d);
    return module;
}
"""


@pytest.fixture
def build(tmp_path):
    """Build a package with our `setup.py` and one of the compilers; the run, and the folder that a wheel is made of."""
    pytest.importorskip("setuptools")  # an environment of Python 3.12 may be without it

    def run(compiler, wish="", cc="/bin/false"):
        package = tmp_path / "src" / "penstock"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
        shutil.copy(ROOT / "setup.py", tmp_path)
        (tmp_path / "pyproject.toml").write_text("[project]\nname = 'penstock'\nversion = '0'\n")
        (tmp_path / "broken.c").write_text("this is no C")
        (tmp_path / "mypyc").mkdir(exist_ok=True)
        (tmp_path / "mypyc" / "__init__.py").touch()
        (tmp_path / "mypyc" / "build.py").write_text(COMPILERS.get(compiler, compiler))
        done = subprocess.run(
            [sys.executable, "setup.py", "build", "--build-lib", "made"],
            cwd=tmp_path,
            env={**os.environ, "CC": cc, "PENSTOCK_COMPILE": wish, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done, tmp_path / "made" / "penstock"

    return run


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("no mypyc", "no mypyc here"),
        ("types", "mypy found errors"),
        ("a file in the way", ".mypy_cache"),
        ("no C compiler", "/bin/false"),
        ("a long command", " -Wall returned 1."),
    ],
)
def test_a_build_that_could_not_compile_says_why_in_what_it_makes_unless_it_had_to_or_was_not_to(
    build, compiler, reason
):
    done, package = build(compiler)
    assert done.returncode == 0, done.stderr
    (word,) = (package / "not_compiled.txt").read_text().splitlines()
    assert reason in word
    assert len(word) < 200
    done, _ = build(compiler, wish="0")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in package.iterdir()] == ["__init__.py"]
    done, _ = build(compiler, wish="1")
    assert done.returncode != 0


def test_a_part_is_made_again_where_it_is_not_what_was_made_of_its_source(build, tmp_path):
    if (cc := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler: cc")

    def value(source):
        (tmp_path / "part.c").write_text(source)
        done, package = build(ONE_PART, "1", cc)
        assert done.returncode == 0, done.stderr
        told = "import sys; sys.path.insert(0, sys.argv[1]); from penstock import part; print(part.VALUE)"
        run = [sys.executable, "-c", told, str(package.parent)]
        text = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        return int(text), done.stdout.count("1 of 1 parts compiled")

    assert value(PART % 1) == (1, 1)
    assert value(PART % 1) == (1, 0)
    (object_,) = tmp_path.glob("build/temp.*/part.o")
    object_.write_bytes(b"")  # the linker takes it
    assert value(PART % 1) == (1, 1)
    object_.unlink()
    assert value(PART % 2) == (2, 1)
    (tmp_path / "src" / "penstock" / "gone.py").touch()
    assert value(PART % 2) == (2, 0)
    (tmp_path / "src" / "penstock" / "gone.py").unlink()
    _, package = build("def mypycify(paths, **_):\n    return []", "1", cc)
    assert [path.name for path in package.iterdir()] == ["__init__.py"]


SERVED = """
import penstock as ps

def same(x: float) -> float:
    return x

service = ps.Service(same, name="mine")
"""


@pytest.fixture
def serve_sources(tmp_path):
    """Serve over a copy of the sources that says, or does not, why it is not compiled; what was written."""

    def run(reason, *options):
        write_module(tmp_path, SERVED)
        package = tmp_path / "installed" / "penstock"
        shutil.copytree(ROOT / "src" / "penstock", package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        if reason is not None:
            (package / "not_compiled.txt").write_text(reason)
        command = (*PENSTOCK, "serve", "model:service", "--port", "0", *options)
        return Program(tmp_path, *command, env={"PYTHONPATH": str(tmp_path / "installed")}).serve_and_stop()

    return run


@pytest.mark.parametrize("options", [(), ("--log-format", "json")], ids=["text", "json"])
def test_what_could_not_be_compiled_says_why_and_what_to_do_at_its_start(serve_sources, options):
    output = serve_sources("command 'gcc' failed: No such file or directory\n", *options)
    (line,) = [line for line in output.splitlines() if "compiling failed" in line]
    assert "failed: command 'gcc' failed: No such file or directory. Install a C compiler" in line
    assert "PENSTOCK_COMPILE=1 with `pip install -v` shows the error" in line
    assert output.index("compiling failed") < output.index("ready on")
    assert "plain Python; Python" in output


def test_sources_that_were_not_to_be_compiled_say_just_that(serve_sources):
    output = serve_sources(None)
    assert "plain Python; Python" in output
    assert "compiling failed" not in output


@pytest.fixture
def build_modules(monkeypatch, tmp_path):
    """The command of `setup.py` that builds the modules, in an empty folder, where `swagger` says that files are."""
    setuptools = pytest.importorskip("setuptools")  # an environment of Python 3.12 may be without it
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    runpy.run_path(str(ROOT / "setup.py"))
    monkeypatch.chdir(tmp_path)
    command = given["cmdclass"]["build_py"](setuptools.Distribution())
    command.ensure_finalized()
    return command


@pytest.fixture
def swagger(tmp_path, monkeypatch):
    """A package like the one that has the files; to import it is an error."""
    dist = tmp_path / "site" / "flask_swagger_ui" / "dist"
    dist.mkdir(parents=True)
    (dist.parent / "__init__.py").write_text("raise ImportError('there is no Flask')")
    for name in ("swagger-ui.css", "swagger-ui-bundle.js", "swagger-ui.js", "favicon-32x32.png", "LICENSE"):
        (dist / name).write_text(f"this is {name}")
    monkeypatch.syspath_prepend(dist.parents[1])


@pytest.mark.parametrize(("editable", "place"), [(False, "built"), (True, "src")])
def test_a_build_takes_the_files_of_the_page_and_their_licence(build_modules, swagger, tmp_path, editable, place):
    build_modules.editable_mode = editable
    build_modules.build_lib = "built"
    build_modules.run()
    folder = tmp_path / place / "penstock/server/pages/assets"
    found = {path.name: path.read_text() for path in folder.iterdir()}
    names = ("LICENSE", "favicon-32x32.png", "swagger-ui-bundle.js", "swagger-ui.css")
    assert found == {name: f"this is {name}" for name in names}


def test_a_build_without_the_requirement_goes_on_and_says_so(build_modules, monkeypatch, tmp_path):
    said = []
    monkeypatch.setattr(build_modules, "warn", said.append)
    monkeypatch.setitem(build_modules.run.__func__.__globals__, "find_spec", lambda name: None)
    build_modules.run()
    assert said == ["penstock gets no page at /docs: a build without isolation needs flask-swagger-ui installed"]
    assert list(tmp_path.rglob("assets")) == []
