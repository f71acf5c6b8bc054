"""The stage that a Python worker runs.  The server never imports this file."""

import time

import penstock as ps


class Square(ps.Stage):
    batch = ps.Batch()

    def predict(self, numbers: list[int]) -> list[int]:
        time.sleep(0.05)  # what a model takes
        return [number * number for number in numbers]
