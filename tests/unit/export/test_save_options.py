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
        ("name", "a b", r"name: a service's name is of letters, digits and `\._-`.*, got 'a b'"),
        ("name", "..", r"got '\.\.'"),
        ("name", None, "got None"),
        ("batch", 32, r"batch takes a penstock\.Batch, got 32"),
        ("tolerance", 1e-5, "tolerance takes two numbers from 0"),
        ("tolerance", (1e-5,), "tolerance takes two numbers"),
        ("tolerance", (1e-5, -1), "tolerance takes two numbers"),
        ("tolerance", (math.nan, 0), "tolerance takes two numbers"),
        ("tolerance", (math.inf, 0), "tolerance takes two numbers"),
        ("tolerance", (True, 0), "tolerance takes two numbers"),
        ("max_bytes", 0, "max_bytes must be a whole number of at least 1, got 0"),
        ("max_bytes", 1.5, r"max_bytes must be a whole number of at least 1, got 1\.5"),
        ("max_bytes", True, "max_bytes must be"),
        ("inline_limit", 0, "inline_limit must be a whole number of at least 1, got 0"),
        ("shard_bytes", 0.5, "shard_bytes must be a whole number of at least 1, got 0.5"),
        ("outside", "user", "outside takes a list of the paths of layers, got 'user'"),
        ("outputs", "probability", "outputs takes a list that is not empty, got 'probability'"),
        ("outputs", [], "outputs takes a list"),
        ("outputs", ["_a"], "kept for later"),
        ("formats", "onnx", "formats takes a list that is not empty, got 'onnx'"),
        ("classes", [], "classes takes a list"),
        ("classes", [object()], "classes must be what JSON can carry"),
        ("classes", [math.nan], "classes must be what JSON can carry"),
        ("metadata", [], r"metadata takes a dict, got \[\]"),
        ("metadata", {"a": object()}, "metadata must be what JSON can carry"),
        ("metadata", {"a": math.inf}, "metadata must be what JSON can carry"),
        ("metadata", {1: "a"}, "metadata must come out of JSON as it went in, so with keys of text"),
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
    with pytest.raises(ConfigError, match="'saved_model' cannot be made of torch; it can be onnx or pt2"):
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
        with pytest.raises(ConfigError, match="path takes the path of the folder to make"):
            check_free_path(path)
