"""Two stages of heavy computing, on cores of their own: while one resamples a walk, the other makes the next."""

import asyncio
import os
import random
from typing import TypedDict

import penstock as ps


class Interval(TypedDict):
    low: float
    high: float


class Walk(ps.Stage):
    """A random walk of `steps` steps; the same seed gives the same walk."""

    examples = [0]

    def setup(self, steps: int) -> None:
        self.steps = steps

    def predict(self, seed: int) -> list[float]:
        steps = random.Random(seed)
        return [steps.gauss(0.1, 1.0) for _ in range(self.steps)]


class Resample(ps.Stage):
    """Where the mean step lies, nine times in ten, by drawing the walk anew `draws` times."""

    examples = [[0.5, -0.25, 1.0]]

    def setup(self, draws: int) -> None:
        self.draws = draws

    def predict(self, walk: list[float]) -> Interval:
        draw = random.Random(0)
        means = sorted(sum(draw.choices(walk, k=len(walk))) / len(walk) for _ in range(self.draws))
        return {"low": means[self.draws // 20], "high": means[-1 - self.draws // 20]}


cores = sorted(os.sched_getaffinity(0))
service = ps.Service(
    ps.stage(Walk, setup={"steps": 20_000}, cpus=cores[0::2]),  # a worker on every other core
    ps.stage(Resample, setup={"draws": 20}, cpus=cores[1::2] or cores),  # and on those in between
    name="intervals",
)


async def main() -> None:
    async with service:
        async for interval in service.stream(range(20)):
            print(f"{interval['low']:.3f} to {interval['high']:.3f}")


if __name__ == "__main__":
    asyncio.run(main())
