"""Which words of a command line name the folder of an artifact."""

from __future__ import annotations

import pytest

from penstock.cli.model_folders import names_folder


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("affairs", "plain", "with:colon"):
        (tmp_path / name).mkdir()
    (tmp_path / "affairs" / "manifest.json").touch()
    (tmp_path / "plain" / "good.py").touch()


@pytest.mark.parametrize("text", ["affairs", "affairs/", "./affairs", "./nothing", "out/nothing", "/", "./with:colon"])
def test_a_folder_with_a_manifest_or_a_path_names_a_folder(text):
    assert names_folder(text)


@pytest.mark.parametrize(
    "text", ["plain", "nothing", "good:service", "plain/good.py", "plain/good.py:service", "plain/good:service", ""]
)
def test_a_module_a_file_and_a_file_without_its_ending_name_none(text):
    assert not names_folder(text)
