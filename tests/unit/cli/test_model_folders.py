"""Which words of a command line name the folder of a trained model."""

from __future__ import annotations

import os

import pytest

from penstock.artifact.current_file import CURRENT
from penstock.artifact.manifest import MANIFEST
from penstock.cli.model_folders import MARKS, load_folder, names_folder
from penstock.config import ArtifactOptions
from penstock.errors import ConfigError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("affairs", "models", "plain", "with:colon", "all/affairs", "all/more", "all/other", "mixed/affairs"):
        (tmp_path / name).mkdir(parents=True)
    for marked in ("all/affairs/CURRENT", "all/more/manifest.json", "mixed/affairs/CURRENT", "mixed/__init__.py"):
        (tmp_path / marked).touch()
    (tmp_path / "models" / "versions" / "1").mkdir(parents=True)
    (tmp_path / "models" / "versions" / "1" / "manifest.json").touch()
    (tmp_path / "models" / "CURRENT").touch()
    (tmp_path / "affairs" / "manifest.json").touch()
    (tmp_path / "plain" / "good.py").touch()


@pytest.mark.parametrize(
    "text",
    [
        *("affairs", "affairs/", "models", "models/", "./affairs", "./nothing", "out/nothing", "/", "./with:colon"),
        *("all", "s3://bucket/models", "s3://bucket/models:service", "s3:/bucket/models", "s3:/bucket/models:service"),
    ],
)
def test_an_artifact_a_model_directory_a_folder_of_these_a_path_and_an_address_name_a_folder(text):
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
    "text",
    [
        *("plain", "nothing", "good:service", "plain/good.py", "plain/good.py:service", "plain/good:service", ""),
        *("mixed", "all:service", "good.py:/service", "./s3:/bucket"),
    ],
)
def test_a_module_a_file_and_a_file_without_its_ending_name_none(text):
    assert not names_folder(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("all", "all is a directory of models, not a model: name the models to serve, of all/affairs all/more"),
        ("./models/versions", "./models/versions has the versions of a model directory: use the directory, models"),
        ("s3://me:secret@bucket/models", "must be a local path, and s3://… is a URL: copy the files into"),
        ("s3:/me:secret@bucket/models", "must be a local path, and s3:/… is a URL: copy the files into"),
    ],
)
def test_what_holds_models_and_is_none_is_told_with_what_to_name(text, words):
    with pytest.raises(ConfigError) as caught:
        load_folder(text, ArtifactOptions())
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
