"""The wheels for a machine with a GPU: what is resolved, which folders are refused, and the build that is installed."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import installing
import pytest
import wheels
from installing import Installed, Interpreter, WrongWheels, check_wheels, install
from wheels import NotMade, Projects, find_python, platforms, python_version, resolve

HERE = Interpreter("3.12", "x86_64", (2, 36))
OWN = "penstock-0.1.0-cp312-cp312-linux_x86_64.whl"


def make_wheel(path: Path, files: dict[str, str] | None = None) -> Path:
    path.parent.mkdir(exist_ok=True)
    project, version, *tags = path.name.removesuffix(".whl").split("-")
    info = f"{project}-{version}.dist-info"
    own = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {'-'.join(tags)}\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**(files or {}), **own, f"{info}/RECORD": ""}.items():
            archive.writestr(name, text)
    return path


# -- what is resolved -------------------------------------------------------------------------------------------------


class Index:
    """Projects in one version each: pip always finds some, and others where it is asked for them by name."""

    def __init__(self, found: dict[str, list[str]], on_demand: dict[str, list[str]] | None = None) -> None:
        self._found = found
        self._on_demand = on_demand or {}
        self.asked: list[list[str]] = []

    def report(self, wanted: list[str]) -> Projects:
        self.asked.append(list(wanted))
        demanded = {line: needs for line, needs in self._on_demand.items() if line.partition("=")[0] in wanted}
        found = [(*line.split("=="), needs) for line, needs in (self._found | demanded).items()]
        return {name: {"version": version, "requires_dist": needs} for name, version, needs in found}


def test_requirements_are_followed_through_extras_and_nothing_else_is_taken() -> None:
    index = Index(
        {
            "served==1": ['fast[standard]>=2; python_version > "3.0"', 'old; extra == "old"'],
            "fast==2.1": ['loop; extra == "standard"', 'docs; extra == "docs"'],
            "loop==3": ["Served"],
            "old==1": [],
        }
    )
    assert resolve(["served"], "3.12", index.report) == {"served": "1", "fast": "2.1", "loop": "3"}
    assert index.asked == [["served"]]


def test_markers_are_those_of_the_python_that_the_wheels_are_for() -> None:
    # pip runs in this Python: it leaves out a backport that a 3.11.0 needs, and takes one that no 3.13 needs.
    needs = ['backport; python_full_version < "3.11.3"', 'older; python_version < "3.12"']
    for version, backport in (("3.11", {"backport": "7", "older": "4"}), ("3.13", {})):
        index = Index({"served==1": needs, "older==4": []}, {"backport==7": []})
        assert resolve(["served"], version, index.report) == {"served": "1", **backport}
        assert index.asked[1:] == ([["served", "backport"]] if backport else [])


def test_a_root_that_is_for_another_python_is_not_asked_for() -> None:
    index = Index({"served==1": []})
    roots = ["served", "tomli>=2; python_version < '3.12'"]
    assert resolve(roots, "3.12", index.report) == {"served": "1"}
    assert index.asked == [["served"]]


def test_torch_and_numpy_are_left_out_with_all_that_only_they_need() -> None:
    index = Index(
        {
            "served==1": ["torch>=2", "NumPy", "shared"],
            "torch==2.13.0": ["nvidia-cublas-cu12", "triton", "sympy", "shared"],
            "numpy==2": [],
            "nvidia-cublas-cu12==12": [],
            "triton==3": [],
            "sympy==1": [],
            "shared==5": [],
        }
    )
    assert resolve(["served"], "3.12", index.report) == {"served": "1", "shared": "5"}


def test_the_report_s_packages_are_an_extra_of_the_project() -> None:
    names = {requirement.partition(">")[0].partition("=")[0] for requirement in wheels.requirements()}
    assert names >= {"msgspec", "uvloop", "fastapi", "litserve", "safetensors", "tokenizers", "uvicorn"}


def test_no_platform_wants_a_newer_glibc_than_2_28() -> None:
    for machine in ("x86_64", "aarch64"):
        oldest = Interpreter("3.12", machine, (2, 5))
        wanted = [oldest.glibc_for(platform) for platform in platforms(machine)]
        assert None not in wanted
        assert max(filter(None, wanted)) == wanted[0] == (2, 28)


# -- which interpreter it is compiled for ----------------------------------------------------------------------------


def an_interpreter(path: Path, status: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_an_interpreter_is_looked_for_on_path_and_then_among_those_of_pyenv(tmp_path: Path, monkeypatch) -> None:
    other = "3.13" if sys.version_info[:2] == (3, 12) else "3.12"
    name = f"python{other}"
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "shims"), str(tmp_path / "bin")]))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    an_interpreter(tmp_path / "shims" / name, status=127)
    assert find_python(other) is None
    in_pyenv = an_interpreter(tmp_path / "pyenv" / "versions" / f"{other}.1" / "bin" / name, status=0)
    assert find_python(other) == str(in_pyenv)
    on_path = an_interpreter(tmp_path / "bin" / name, status=0)
    assert find_python(other) == str(on_path)
    assert find_python("{}.{}".format(*sys.version_info)) == sys.executable


@pytest.mark.parametrize(("given", "version"), [("3.11", "3.11"), ("3.12", "3.12"), ("3.13.0", "3.13")])
def test_a_version_may_be_given_with_its_release(given: str, version: str) -> None:
    assert python_version(given) == version


@pytest.mark.parametrize("given", ["3.10", "3.14", "3", "", "3.12rc1", "cp312", "../3.12"])
def test_another_version_is_a_sentence_and_status_2(given: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["wheels.py", given])
    assert wheels.main() == 2
    assert capsys.readouterr().err == f"{given!r} is no Python that Penstock is for: give 3.11, 3.12 or 3.13\n"


# -- the folder takes the place of the old one, or is not made --------------------------------------------------------


class MadePip:
    """Makes wheels without a network, and fails after the last of them if it is told to."""

    own = "penstock-0.1.0-py3-none-any.whl"
    content = ""
    fails = False

    def __init__(self, version: str, scratch: Path) -> None:
        assert version == "3.12"
        assert scratch.is_dir()

    def build(self, python: str | None, into: Path) -> None:
        assert python is None
        make_wheel(into / self.own, {"content": self.content})

    def report(self, wanted: list[str]) -> Projects:
        return {name: {"version": "1"} for name in wanted}

    def fetch(self, projects: dict[str, str], into: Path) -> None:
        for name, version in projects.items():
            make_wheel(into / f"{name}-{version}-cp312-cp312-manylinux_2_17_x86_64.whl")
        if self.fails:
            raise NotMade("pip could not download the wheels")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """The folder to be filled, with an old wheel in it."""
    folder = tmp_path / "build" / "gpu-wheels"
    folder.mkdir(parents=True)
    make_wheel(folder / "old-1-py3-none-any.whl")
    monkeypatch.setattr(wheels, "ROOT", tmp_path)
    monkeypatch.setattr(wheels, "FOLDER", folder)
    monkeypatch.setattr(wheels, "Pip", MadePip)
    monkeypatch.setattr(wheels, "requirements", lambda: ["msgspec"])
    monkeypatch.setattr(wheels.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "argv", ["wheels.py", "3.12"])
    monkeypatch.setenv("PENSTOCK_COMPILE", "0")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_has_the_new_wheels_and_nothing_else(folder: Path, capsys) -> None:
    assert wheels.main() == 0
    assert names(folder) == ["msgspec-1-cp312-cp312-manylinux_2_17_x86_64.whl", MadePip.own]
    assert names(folder.parent) == ["gpu-wheels"]
    told = capsys.readouterr().out
    assert all(name in told for name in names(folder))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fails": True}, "pip could not download the wheels"),
        ({"content": "0" * 50}, "the wheels have "),
        ({"own": "penstock-0.1.0-cp311-cp311-linux_x86_64.whl"}, "is for another Python than this 3.12"),
    ],
)
def test_a_run_that_fails_says_why_and_leaves_the_old_folder(folder, changes, words, monkeypatch, capsys) -> None:
    monkeypatch.setattr(wheels, "LIMIT", 600 if "content" in changes else wheels.LIMIT)
    for name, value in changes.items():
        monkeypatch.setattr(MadePip, name, value)
    assert wheels.main() == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert names(folder) == ["old-1-py3-none-any.whl"]
    assert names(folder.parent) == ["gpu-wheels"]


def test_a_build_folder_that_is_a_file_is_a_sentence(folder: Path, monkeypatch, capsys) -> None:
    (folder.parent / "file").touch()
    monkeypatch.setattr(wheels, "FOLDER", folder.parent / "file" / "gpu-wheels")
    assert wheels.main() == 1
    assert "could not be written" in capsys.readouterr().err


# -- folders that are refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        ("py3-none-any", ""),
        ("py2.py3-none-any", ""),
        ("py312-none-any", ""),
        ("py313-none-any", "another Python than this 3.12"),
        ("py2-none-any", "another Python"),
        ("cp312-cp312-linux_x86_64", ""),
        ("cp312-none-any", ""),
        ("cp311-none-any", "another Python"),
        ("cp311-cp311-manylinux_2_17_x86_64", "another Python"),
        ("cp313-cp313t-manylinux_2_17_x86_64", "another Python"),
        ("pp312-pypy312_pp73-manylinux_2_17_x86_64", "another Python"),
        ("cp38-abi3-manylinux_2_17_x86_64", ""),
        ("cp312-abi3-manylinux_2_17_x86_64", ""),
        ("cp313-abi3-manylinux_2_17_x86_64", "another Python"),
        ("cp312-cp312-manylinux1_x86_64", ""),
        ("cp312-cp312-manylinux2010_x86_64", ""),
        ("cp312-cp312-manylinux2014_x86_64", ""),
        ("cp312-cp312-manylinux_2_17_aarch64.manylinux2014_aarch64", "another machine than this x86_64"),
        ("cp312-cp312-linux_aarch64", "another machine"),
        ("cp312-cp312-musllinux_1_2_x86_64", "another machine"),
        ("cp312-cp312-win_amd64", "another machine"),
        ("cp312-cp312-manylinux_2_36_x86_64", ""),
        ("cp312-cp312-manylinux_2_37_x86_64.manylinux_2_28_x86_64", ""),
        ("cp312-cp312-manylinux_2_37_x86_64", "needs glibc 2.37, and this system has 2.36"),
    ],
)
def test_a_wheel_fits_by_the_tags_of_its_name(tmp_path: Path, tags: str, words: str) -> None:
    own = make_wheel(tmp_path / OWN)
    other = make_wheel(tmp_path / f"other_1-2-{tags}.whl")
    if not words:
        assert check_wheels(tmp_path, HERE) == [other, own]
        return
    with pytest.raises(WrongWheels, match=words) as refused:
        check_wheels(tmp_path, HERE)
    assert other.name in str(refused.value)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (None, "there is no folder of wheels at"),
        ([], "has no wheel of penstock"),
        (["penstock_plugin-1-py3-none-any.whl", "penstock-0.1.0.tar.gz"], "has no wheel of penstock"),
        ([OWN, "rich-15-py3-none-any.whl", "rich-14-py3-none-any.whl"], "one of each is wanted"),
        (["penstock-0.1.0.whl"], "is not named as wheels are"),
    ],
)
def test_a_folder_that_is_no_use_is_a_sentence_with_the_command(tmp_path, files, words) -> None:
    if files is not None:
        (tmp_path / "wheels").mkdir()
        for name in files:
            make_wheel(tmp_path / "wheels" / name)
    with pytest.raises(WrongWheels, match=words) as refused:
        check_wheels(tmp_path / "wheels", HERE)
    assert "`make gpu-wheels PYTHON_VERSION=3.12` on a machine of the kind x86_64" in str(refused.value)


def test_a_wheel_of_which_the_end_is_missing_is_to_be_copied_again(tmp_path: Path) -> None:
    own = make_wheel(tmp_path / OWN)
    own.write_bytes(own.read_bytes()[:-30])
    with pytest.raises(WrongWheels, match=r"linux_x86_64.whl is cut short: copy it again"):
        check_wheels(tmp_path, HERE)


def a_python(path: Path, script: str) -> str:
    """An interpreter that does what the script says, and else what this one does."""
    path.write_text(f'#!/bin/sh\n{script}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ('["PyPy", "3.11", "x86_64", "glibc 2.36"]', "is PyPy 3.11: use CPython 3.11, 3.12 or 3.13"),
        ('["CPython", "3.10", "x86_64", "glibc 2.36"]', "is CPython 3.10: use"),
        ('["free-threaded CPython", "3.13", "x86_64", "glibc 2.36"]', "is free-threaded CPython 3.13: use"),
    ],
)
def test_a_python_for_which_no_wheels_are_made_is_a_sentence(tmp_path: Path, answer: str, words: str) -> None:
    with pytest.raises(WrongWheels, match=words):
        Interpreter.of(a_python(tmp_path / "python", f"echo '{answer}'; exit"))


def test_without_glibc_no_manylinux_wheel_fits(tmp_path: Path) -> None:
    python = a_python(tmp_path / "python", """echo '["CPython", "3.12", "x86_64", ""]'; exit""")
    make_wheel(tmp_path / OWN)
    make_wheel(tmp_path / "msgspec-1-cp312-cp312-manylinux2014_x86_64.whl")
    with pytest.raises(WrongWheels, match=r"needs glibc 2\.17, and this system has none: run"):
        check_wheels(tmp_path, Interpreter.of(python))


# -- what is installed ------------------------------------------------------------------------------------------------

MADE = {
    "penstock/__init__.py": "import other",
    "penstock/server/serve.py": "",
    "penstock/hosting/build.py": "from penstock.core import item\n"
    "def is_compiled():\n    return hasattr(item, 'compiled')\n",
    "penstock/core/item.py": "compiled = True",
}
"""A Penstock that says of itself that it is compiled."""


@pytest.fixture
def made(tmp_path: Path, monkeypatch) -> Path:
    """A folder with its wheel and that of its dependency; the sources beside are the same, but not compiled."""
    for name, text in MADE.items():
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(installing, "SOURCES", tmp_path / "src")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    make_wheel(tmp_path / "wheels" / "other-1-py3-none-any.whl", {"other-1.data/purelib/other.py": ""})
    make_wheel(tmp_path / "wheels" / "penstock-0.1.0-py3-none-any.whl", MADE)
    return tmp_path


NO_PIP = 'test "$2" != pip || exit 1'


@pytest.mark.parametrize("script", ["", NO_PIP], ids=["pip", "no pip"])
def test_wheels_are_installed_with_pip_and_without(made: Path, script: str, monkeypatch) -> None:
    monkeypatch.setenv("PIP_TARGET", str(made / "elsewhere"))
    monkeypatch.delenv("HOME", raising=False)
    python = a_python(made / "python", script)
    assert install(made / "wheels", made / "site", python) == Installed("compiled", "")
    installed = {path.name for path in (made / "site").iterdir()} - {"__pycache__"}
    assert installed == {"other.py", "other-1.dist-info", "penstock", "penstock-0.1.0.dist-info"}
    assert not (made / "elsewhere").exists()


def test_what_a_killed_pip_leaves_lies_beside_what_it_was_to_install(made: Path) -> None:
    python = a_python(made / "python", 'test "$2" != pip || { touch "$TMPDIR/pip-was-here"; exit 1; }')
    (made / "scratch").mkdir()
    install(made / "wheels", made / "scratch" / "site", python)
    assert (made / "scratch" / "pip-was-here").exists()


def test_a_compiled_build_that_cannot_be_imported_gives_way_to_the_sources(made: Path) -> None:
    own = made / "wheels" / "penstock-0.1.0-py3-none-any.whl"
    make_wheel(own, MADE | {"penstock/core/item.py": "raise ImportError('GLIBC_2.38 not found')", "a__mypyc.b.so": ""})
    (made / "src" / "penstock" / "core" / "item.py").write_text("")
    found = install(made / "wheels", made / "site", a_python(made / "python", NO_PIP))
    assert found == Installed("sources", "ImportError: GLIBC_2.38 not found")
    assert {path.name for path in (made / "site").iterdir()} >= {"other.py"}
    assert not list((made / "site").glob("penstock/**/*.py"))
    assert not list((made / "site").glob("*.so"))


def test_a_wheel_of_sources_is_what_it_says(made: Path) -> None:
    sources = MADE | {"penstock/core/item.py": ""}
    make_wheel(made / "wheels" / "penstock-0.1.0-py3-none-any.whl", sources)
    (made / "src" / "penstock" / "core" / "item.py").write_text("")
    found = install(made / "wheels", made / "site", a_python(made / "python", NO_PIP))
    assert found == Installed("sources", "the wheel has the sources alone")


def test_figures_of_a_build_that_is_not_of_these_sources_come_with_a_warning(made: Path) -> None:
    (made / "src" / "penstock" / "new.py").touch()
    found = install(made / "wheels", made / "site", a_python(made / "python", NO_PIP))
    assert found == Installed(
        "compiled", "the wheel is of other sources than those here: penstock/new.py is not the same"
    )


def test_a_dependency_that_is_missing_is_a_sentence(made: Path) -> None:
    (made / "wheels" / "other-1-py3-none-any.whl").unlink()
    with pytest.raises(WrongWheels, match=r"cannot be imported .*: ModuleNotFoundError: No module named 'other'; run"):
        install(made / "wheels", made / "site", a_python(made / "python", NO_PIP))


def test_a_folder_that_cannot_be_written_is_a_sentence(made: Path) -> None:
    (made / "file").touch()
    with pytest.raises(WrongWheels, match=r"could not be installed into .*: .*Not a directory"):
        install(made / "wheels", made / "file" / "site", a_python(made / "python", NO_PIP))
