"""Which words of a command line name the folder of a trained model."""

from __future__ import annotations

import os

import pytest

from penstock.artifact.current_file import CURRENT
from penstock.artifact.manifest import MANIFEST
from penstock.cli.model_folders import MARKS, names_folder


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("affairs", "models", "plain", "with:colon"):
        (tmp_path / name).mkdir()
    (tmp_path / "models" / "CURRENT").touch()
    (tmp_path / "affairs" / "manifest.json").touch()
    (tmp_path / "plain" / "good.py").touch()


@pytest.mark.parametrize(
    "text", ["affairs", "affairs/", "models", "models/", "./affairs", "./nothing", "out/nothing", "/", "./with:colon"]
)
def test_an_artifact_a_model_directory_and_a_path_name_a_folder(text):
    assert names_folder(text)


def test_a_name_that_is_too_long_for_a_folder_names_none_and_raises_nothing():
    assert not names_folder("a" * 300)
    assert names_folder("./" + "a" * 300)


def test_a_folder_that_cannot_be_looked_into_is_named_so_that_it_is_told(monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != ("plain", os.X_OK))
    assert names_folder("plain")


def test_the_files_that_mark_a_folder_are_those_that_are_written():
    assert MARKS == (MANIFEST, CURRENT)


@pytest.mark.parametrize(
    "text", ["plain", "nothing", "good:service", "plain/good.py", "plain/good.py:service", "plain/good:service", ""]
)
def test_a_module_a_file_and_a_file_without_its_ending_name_none(text):
    assert not names_folder(text)
