"""Which services the text of modules promises; nothing is imported for it."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import argcomplete
import pytest

from penstock.cli import completion
from penstock.cli.completion import artifact_folders, complete, service_names, services_in
from penstock.cli.options import add_flags
from penstock.config import ServiceOptions


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("service = Service(f)", ["service"]),
        ("import penstock as ps\na = ps.Service(f)\nb: ps.Service = ps.Service(f)", ["a", "b"]),
        ("both = other = ps.Service(f).configured(timeout=3)", ["both", "other"]),
        ("x.service = ps.Service(f)", []),
        ("x.service: object = ps.Service(f)\nname: str", []),
        ("service = make()\nother = f()()\nlimit = 3\nmakers = [f][0]()", []),
        ("def make():\n    service = ps.Service(f)", []),
        ("service = ps.Service(", []),
        ("service = ps.Service(f)\0", []),
    ],
)
def test_the_services_of_a_module_are_those_its_text_makes(source, names):
    assert services_in(source) == names


@pytest.fixture
def folder(tmp_path):
    for name, text in {
        "good.py": "service = Service(f)\nother = Service(f)",
        "greet.py": "raise SystemExit('it was imported')",
        "not-a-module.py": "service = Service(f)",
        ".hidden.py": "service = Service(f)",
        "notes.txt": "service = Service(f)",
        "shop/__init__.py": "",
        "shop/prices.py": "prices = Service(f)",
        "a/b/c/deep.py": "",
        "a/b/c/d/deeper.py": "",
        "venv/pyvenv.cfg": "",
        "venv/lib/inside.py": "",
        "latin.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.py").write_bytes(b"service = Service('\xe4')")
    return tmp_path


def test_every_module_is_named_with_its_services(folder):
    assert service_names(folder) == [
        "good:service", "good:other", "greet:", "latin:", "a.b.c.deep:", "shop.prices:prices",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("g", ["good:service", "good:other", "greet:"]),
        ("good:", ["good:service", "good:other"]),
        ("good:o", ["good:other"]),
        ("shop.", ["shop.prices:prices"]),
        ("elsewhere", []),
        ("good.py", ["good.py:service", "good.py:other"]),
        ("good.py:o", ["good.py:other"]),
        ("./shop/prices.py:", ["./shop/prices.py:prices"]),
        ("greet.py:", []),
        ("none.py:", []),
        ("not-a-module.py:", []),
    ],
)
def test_only_what_begins_as_it_was_typed_is_named(folder, prefix, names):
    assert service_names(folder, prefix) == names


def test_no_more_is_read_than_one_may_wait_for(folder, monkeypatch):
    monkeypatch.setattr(completion, "MOST_MODULES", 1)
    assert service_names(folder) == ["good:service", "good:other"]
    monkeypatch.setattr(completion, "MOST_BYTES", 5)
    assert service_names(folder) == ["good:"]


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ("", ["affairs"]),
        ("a", ["affairs", "all/"]),
        ("affairs", ["affairs"]),
        ("all/", ["all/deep/", "all/second"]),
        ("all/s", ["all/second"]),
        (".", [".hidden/"]),
        ("./", ["./affairs", "./all/"]),
        ("nothing/", []),
        ("plain.txt/", []),
    ],
)
def test_artifacts_and_model_directories_are_named_and_the_folders_that_lead_to_them(tmp_path, prefix, found):
    for name in ("affairs", "all/second", "all/deep/third", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("affairs", "all/deep/third"):
        (tmp_path / name / "manifest.json").touch()
    (tmp_path / "all" / "second" / "CURRENT").touch()
    (tmp_path / "plain.txt").touch()
    assert artifact_folders(tmp_path, prefix) == found


def test_an_artifact_is_named_by_its_absolute_path(tmp_path):
    (tmp_path / "affairs").mkdir()
    (tmp_path / "affairs" / "manifest.json").touch()
    assert artifact_folders(Path("/nowhere"), f"{tmp_path}/aff") == [f"{tmp_path}/affairs"]


def test_the_socket_of_external_workers_is_a_file_and_the_numbers_are_none():
    parser = argparse.ArgumentParser()
    add_flags(parser, ServiceOptions, "service")
    complete(parser, [parser])
    asked = {action.dest: getattr(action, "completer", None) for action in parser._actions}
    names = {f.name for f in fields(ServiceOptions) if "remote" in f.name or f.name == "reattach_timeout"}
    assert {name for name in names if asked[name] is None} == {"remote_worker_socket"}, (
        "the shell completes files itself"
    )
    assert all(
        isinstance(asked[name], argcomplete.completers.SuppressCompleter) for name in names - {"remote_worker_socket"}
    )
