import dataclasses
import math

import pytest

from penstock.config import Batch
from penstock.errors import ConfigError
from penstock.export.save_options import SaveOptions, check_free_path
from rows import each

FITTING = {
    "name": "model",
    "outputs": None,
    "classes": None,
    "batch": Batch(),
    "formats": None,
    "tolerance": (1e-5, 1e-5),
    "max_bytes": 1,
    "inline_limit": 1,
    "outside": (),
    "shard_bytes": 1,
    "metadata": {},
}


@each(
    ("option", "value", "reason"),
    [
        ("name", "a b", r"name: a service's name must consist of letters, digits and `\._-`.*, got 'a b'"),
        ("name", "..", r"got '\.\.'"),
        ("name", None, "got None"),
        ("batch", 32, r"batch must be a penstock\.Batch, got 32"),
        ("tolerance", 1e-5, "tolerance must be two numbers of at least 0"),
        ("tolerance", (1e-5,), "tolerance must be two numbers"),
        ("tolerance", (1e-5, -1), "tolerance must be two numbers"),
        ("tolerance", (math.nan, 0), "tolerance must be two numbers"),
        ("tolerance", (math.inf, 0), "tolerance must be two numbers"),
        ("tolerance", (True, 0), "tolerance must be two numbers"),
        ("max_bytes", 0, "max_bytes must be an integer of at least 1, got 0"),
        ("max_bytes", 1.5, r"max_bytes must be an integer of at least 1, got 1\.5"),
        ("max_bytes", True, "max_bytes must be"),
        ("inline_limit", 0, "inline_limit must be an integer of at least 1, got 0"),
        ("shard_bytes", 0.5, "shard_bytes must be an integer of at least 1, got 0.5"),
        ("outside", "user", "outside must be a list of the paths of layers, got 'user'"),
        ("outputs", "probability", "outputs must be a list that is not empty, got 'probability'"),
        ("outputs", [], "outputs must be a list"),
        ("outputs", ["_a"], "are reserved"),
        ("formats", "onnx", "formats must be a list that is not empty, got 'onnx'"),
        ("classes", [], "classes must be a list"),
        ("classes", [object()], "classes must be valid as JSON"),
        ("classes", [math.nan], "classes must be valid as JSON"),
        ("metadata", [], r"metadata must be a dict, got \[\]"),
        ("metadata", {"a": object()}, "metadata must be valid as JSON"),
        ("metadata", {"a": math.inf}, "metadata must be valid as JSON"),
        (
            "metadata",
            {1: "a"},
            "after it is written as JSON and read again: use keys of text",
        ),
        ("metadata", {"a": (1, 2)}, "no tuples, got"),
    ],
)
def test_a_wrong_option_is_told_with_its_value(option, value, reason):
    with pytest.raises(ConfigError, match=reason):
        SaveOptions(**{**FITTING, option: value})


def test_the_first_format_of_the_framework_is_the_default():
    assert SaveOptions(**FITTING).chosen_formats(("onnx", "pt2"), "torch") == ("onnx",)


def test_each_format_is_written_once():
    options = SaveOptions(**{**FITTING, "formats": ["pt2", "onnx", "pt2"]})
    assert options.chosen_formats(("onnx", "pt2"), "torch") == ("pt2", "onnx")


def test_a_format_that_the_framework_has_not_is_refused():
    options = SaveOptions(**{**FITTING, "formats": ["saved_model"]})
    with pytest.raises(ConfigError, match="torch cannot be exported to 'saved_model'; supported: onnx or pt2"):
        options.chosen_formats(("onnx", "pt2"), "torch")


def test_options_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SaveOptions(**FITTING).name = "other"


def test_a_path_where_something_is_cannot_be_the_target(tmp_path):
    file, folder, link = tmp_path / "file", tmp_path / "folder", tmp_path / "link"
    file.touch()
    folder.mkdir()
    link.symlink_to(tmp_path / "nowhere")
    for path in (file, folder, link):
        with pytest.raises(ConfigError, match=f"{path.name} exists; an artifact is never overwritten"):
            check_free_path(path)
    assert check_free_path(str(tmp_path / "new")) == tmp_path / "new"
    for path in ("", None, 3):
        with pytest.raises(ConfigError, match="path must be the path of the directory to create"):
            check_free_path(path)
