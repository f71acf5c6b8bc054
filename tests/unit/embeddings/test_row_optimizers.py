"""Steps of optimizers against the formulas of PyTorch, a number at a time in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.embeddings.row_optimizers import SGD, Adagrad, SparseAdam
from penstock.errors import ConfigError


def sgd(x, grads, optimizer):
    for _, grad in grads:
        x -= optimizer.lr * grad
    return x


def adagrad(x, grads, optimizer):
    total = optimizer.initial_accumulator_value
    for step, grad in grads:
        total += grad**2
        x -= optimizer.lr / (1 + (step - 1) * optimizer.lr_decay) * grad / (math.sqrt(total) + optimizer.eps)
    return x


def sparse_adam(x, grads, optimizer):
    mean = square = 0.0
    first, second = optimizer.betas
    for step, grad in grads:
        mean = first * mean + (1 - first) * grad
        square = second * square + (1 - second) * grad**2
        rate = optimizer.lr * math.sqrt(1 - second**step) / (1 - first**step)
        x -= rate * mean / (math.sqrt(square) + optimizer.eps)
    return x


@pytest.mark.parametrize(
    ("formula", "optimizer"),
    [
        (sgd, SGD(lr=0.3)),
        (adagrad, Adagrad(lr=0.3)),
        (adagrad, Adagrad(lr=0.3, lr_decay=0.1, initial_accumulator_value=0.5, eps=0.1)),
        (sparse_adam, SparseAdam(lr=0.3)),
        (sparse_adam, SparseAdam(lr=0.3, betas=(0.5, 0.7), eps=0.1)),
    ],
)
def test_steps_are_those_of_the_formula(formula, optimizer):
    """Three rows, of which one has no gradient in every second step."""
    random = np.random.default_rng(4)
    rows = random.standard_normal((3, 2)).astype(np.float32)
    first = rows.copy()
    state = optimizer.first_state(3, 2)
    assert state.shape == (3, optimizer.state_width(2))
    grads = random.standard_normal((40, 3, 2)).astype(np.float32)
    for step in range(1, 41):
        some = slice(0, 3 if step % 2 else 2)
        optimizer.update(rows[some], state[some], grads[step - 1, some], optimizer.lr, step)
    for (row, column), found in np.ndenumerate(rows):
        given = [(n, float(grads[n - 1, row, column])) for n in range(1, 41) if row < 2 or n % 2]
        assert found == pytest.approx(formula(float(first[row, column]), given, optimizer), rel=2e-5, abs=2e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SGD(lr=-0.1), "lr must be 0 or more, and finite, got -0.1"),
        (lambda: SGD(lr=float("nan")), "lr must be"),
        (lambda: SGD(lr="0.1"), "lr must be 0 or more, and finite, got '0.1'"),
        (lambda: Adagrad(lr=0.1, lr_decay=-1.0), "lr_decay must be"),
        (lambda: Adagrad(lr=0.1, initial_accumulator_value=-1.0), "initial_accumulator_value must be"),
        (lambda: Adagrad(lr=0.1, eps=float("inf")), "eps must be"),
        (lambda: SparseAdam(lr=0.1, betas=(0.9, 1.0)), "betas must be two numbers from 0 to below 1"),
        (lambda: SparseAdam(lr=0.1, betas=(-0.1, 0.9)), "betas must be"),
        (lambda: SparseAdam(lr=0.1, eps=-1.0), "eps must be"),
    ],
)
def test_an_optimizer_that_cannot_be_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_rate_of_numpy_is_a_plain_number():
    assert type(SGD(lr=np.float32(0.5)).lr) is float
