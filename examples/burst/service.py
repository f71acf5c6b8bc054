"""Squares, two seconds a batch: whatever its size, as a large model on a GPU nearly is."""

import sys
import time
from typing import TypedDict

import penstock as ps


class Question(TypedDict):
    data: int


class Answer(TypedDict):
    result: int


class Square(ps.Stage):
    batch = ps.Batch(max_size=4, max_wait=1.0)

    def predict(self, questions: list[Question]) -> list[Answer]:
        numbers = [question["data"] for question in questions]
        print(f"batch {numbers} begins", file=sys.stderr, flush=True)
        time.sleep(2.0)
        print(f"batch {numbers} ends", file=sys.stderr, flush=True)
        return [Answer(result=number * number) for number in numbers]


service = ps.Service(Square, name="square", max_in_flight=8, timeout=3.0)
