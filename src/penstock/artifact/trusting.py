"""Decide whether a graph may be opened: some formats can hold code that runs then.  Pure."""

from __future__ import annotations

from typing import Final

from penstock.errors import ConfigError

RUNS_CODE: Final = frozenset({"pt2", "saved_model"})
"""What PyTorch and TensorFlow open can do what the process may do.  ONNX has operators alone."""


def check_trust(format: str, *, trusted: bool) -> None:  # noqa: A002  # the word users know
    """Refuse a format that can run code, where nobody said that the artifact is trusted.

    Args:
        format: of the graph.
        trusted: somebody said so, or named the artifact's digest, so that they know the very bytes.

    Raises:
        ConfigError: nobody did.
    """
    if format in RUNS_CODE and not trusted:
        raise ConfigError(
            f"a graph of the format {format!r} can run code when it is opened. Pass the digest of the "
            "artifact with --model-digest HEX (model_digest= in Python) if you know it, or use --trust-model-code "
            "(trust_model_code=True) if you trust everyone with write access to that directory"
        )
