from __future__ import annotations

import pytest

from penstock.artifact.trusting import check_trust
from penstock.errors import ConfigError


@pytest.mark.parametrize("kind", ["pt2", "saved_model"])
def test_what_can_run_code_needs_somebody_who_trusts_it_or_names_it(kind):
    with pytest.raises(
        ConfigError, match=r"HEX \(model_digest= in Python\).*--trust-model-code \(trust_model_code=True\)"
    ):
        check_trust(kind, trusted=False)
    check_trust(kind, trusted=True)


def test_onnx_needs_no_trust():
    check_trust("onnx", trusted=False)
