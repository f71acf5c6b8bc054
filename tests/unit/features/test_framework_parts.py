"""Without a framework, what needs it says what to install."""

from __future__ import annotations

import sys

import pytest

from penstock import features as f
from penstock.errors import ConfigError
from penstock.features.framework_parts import load_part

FEATURES = f.Features({"a": f.Numeric()})
ASKED = [
    ("torch", lambda: FEATURES.torch_dataset([])),
    ("tensorflow", lambda: FEATURES.tf_dataset([])),
    ("tensorflow", lambda: FEATURES.tf_encode({})),
]


@pytest.mark.parametrize(("library", "ask"), ASKED)
def test_without_a_framework_the_message_says_what_to_install(library, ask, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    for part in ("torch_dataset", "tensorflow_ops"):
        monkeypatch.delitem(sys.modules, f"penstock.features.{part}", raising=False)
    with pytest.raises(ConfigError, match=rf"pip install 'penstock\[{library}\]'"):
        ask()


def test_a_part_is_loaded_and_another_error_is_not_taken_for_a_missing_framework():
    assert load_part("kinds", "torch").Numeric is f.Numeric
    with pytest.raises(ModuleNotFoundError, match=r"penstock\.features\.nothing"):
        load_part("nothing", "torch")
