"""A step of an optimizer for the rows of a table, as PyTorch has it for sparse gradients.  No clock, no store.

Contract
--------
* A row and its state are updated in place, in float32.
* A row without a gradient does not change, and neither does its state.
* `step` counts the updates of the whole table, from 1.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import msgspec
import numpy as np

from penstock.embeddings.rules import Rows, is_finite
from penstock.errors import ConfigError


class SGD(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sgd"):
    """`torch.optim.SGD` without momentum and weight decay."""

    lr: float

    def __post_init__(self) -> None:
        _check_not_negative(self, "lr")

    def state_width(self, width: int) -> int:  # noqa: ARG002  # it has none
        """Numbers of state beside a row of `width` numbers."""
        return 0

    def first_state(self, rows: int, width: int) -> Rows:  # noqa: ARG002
        """The state of new rows."""
        return np.empty((rows, 0), np.float32)

    def update(self, rows: Rows, state: Rows, grads: Rows, lr: float, step: int) -> None:  # noqa: ARG002
        """Take one step."""
        rows -= np.float32(lr) * grads


class Adagrad(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="adagrad"):
    """`torch.optim.Adagrad` without weight decay."""

    lr: float
    lr_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    def __post_init__(self) -> None:
        for name in ("lr", "lr_decay", "initial_accumulator_value", "eps"):
            _check_not_negative(self, name)

    def state_width(self, width: int) -> int:
        """Numbers of state beside a row of `width` numbers."""
        return width

    def first_state(self, rows: int, width: int) -> Rows:
        """The state of new rows."""
        return np.full((rows, width), self.initial_accumulator_value, np.float32)

    def update(self, rows: Rows, state: Rows, grads: Rows, lr: float, step: int) -> None:
        """Take one step."""
        state += grads * grads
        rate = np.float32(lr / (1 + (step - 1) * self.lr_decay))
        rows -= rate * (grads / (np.sqrt(state) + np.float32(self.eps)))


class SparseAdam(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sparse_adam"):
    """`torch.optim.SparseAdam`."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check_not_negative(self, "lr")
        if len(self.betas) != 2 or not all(is_finite(beta) and 0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas must be two numbers from 0 to below 1, got {self.betas!r}")
        msgspec.structs.force_setattr(self, "betas", tuple(map(float, self.betas)))
        _check_not_negative(self, "eps")

    def state_width(self, width: int) -> int:
        """Numbers of state beside a row of `width` numbers."""
        return 2 * width

    def first_state(self, rows: int, width: int) -> Rows:
        """The state of new rows."""
        return np.zeros((rows, 2 * width), np.float32)

    def update(self, rows: Rows, state: Rows, grads: Rows, lr: float, step: int) -> None:
        """Take one step."""
        width = rows.shape[1]
        mean, square = state[:, :width], state[:, width:]
        first, second = self.betas
        mean += np.float32(1 - first) * (grads - mean)
        square += np.float32(1 - second) * (grads * grads - square)
        rate = lr * math.sqrt(1 - second**step) / (1 - first**step)
        rows -= np.float32(rate) * (mean / (np.sqrt(square) + np.float32(self.eps)))


RowOptimizer: TypeAlias = SGD | Adagrad | SparseAdam


def _check_not_negative(optimizer: msgspec.Struct, name: str) -> None:
    value = getattr(optimizer, name)
    if not (is_finite(value) and value >= 0):
        raise ConfigError(f"{name} must be 0 or more, and finite, got {value!r}")
    msgspec.structs.force_setattr(optimizer, name, float(value))  # one of numpy cannot be written as JSON
