"""Squares numbers, and notes each run in a file: what runs twice is there twice."""

import os
from pathlib import Path

import penstock as ps


class Square(ps.Stage):
    def predict(self, number: int) -> int:
        # One write without a buffer: workers of both replicas add to this file.
        with Path(os.environ["RUNS"]).open("ab", buffering=0) as runs:
            runs.write(b"%d\n" % number)
        return number * number


service = ps.Service(Square)
