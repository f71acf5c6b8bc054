"""Features are fetched, scored in batches, and the scores uploaded: the model in the middle waits for nobody."""

import json
import math
import os
from urllib.parse import quote

import penstock as ps
from penstock.stages import Fetch, Outgoing, Upload

WEIGHTS = {"visits": 0.4, "orders": 1.5}
LOCAL = "127.0.0.0/8"  # not public, so it has to be allowed


class Locate(ps.Stage):
    """Where the features of a user are."""

    def setup(self, store: str) -> None:
        self.store = store

    def predict(self, user: str) -> str:
        return f"{self.store}/features/{quote(user, safe='')}"


class Score(ps.Stage):
    """A model: how likely a user is to come back."""

    batch = ps.Batch(max_size=32)
    examples = [b'{"user": "ada", "visits": 3, "orders": 1}']

    def setup(self, store: str) -> None:
        self.store = store

    def predict(self, bodies: list[bytes]) -> list[Outgoing]:
        return [self.scored(json.loads(body)) for body in bodies]

    def scored(self, row: dict) -> Outgoing:
        score = 1 / (1 + math.exp(3 - sum(weight * row[name] for name, weight in WEIGHTS.items())))
        url = f"{self.store}/scores/{quote(row['user'], safe='')}"
        return Outgoing(url, json.dumps(round(score, 3)).encode(), "application/json")


def service_on(store: str) -> ps.Service:
    transfers = {"allow_net": LOCAL, "max_bytes": 64 * 1024, "timeout": 10.0, "retries": 2}
    return ps.Service(
        ps.stage(Locate, setup={"store": store}),
        ps.stage(Fetch, setup=transfers, concurrency=64),  # 64 users at once, in one process
        ps.stage(Score, setup={"store": store}),
        ps.stage(Upload, setup=transfers, concurrency=64),
        name="scores",
    )


service = service_on(os.environ.get("STORE", "http://127.0.0.1:8090"))
