"""Two stages in three worker processes, called from a program: twice x, plus three."""

import asyncio

import penstock as ps


class Scale(ps.Stage):
    def setup(self, factor: float) -> None:
        self.factor = factor

    def predict(self, x: float) -> float:
        return x * self.factor


class Shift(ps.Stage):
    batch = ps.Batch(max_size=32, max_wait=0.002)
    examples = [1.0]

    def predict(self, xs: list[float]) -> list[float]:
        return [x + 3 for x in xs]


service = ps.Service(
    ps.stage(Scale, setup={"factor": 2.0}, workers=2, cpus=[0, 1]),
    ps.stage(Shift, workers=1),
    name="arithmetic",
)


async def main() -> None:
    async with service:
        assert await service.predict(3) == 9.0
        assert await service.predict_many([1, 2]) == [5.0, 7.0]
        expected = 3
        async for y in service.stream(range(10_000)):
            assert y == expected
            expected += 2


if __name__ == "__main__":
    asyncio.run(main())
    with service.blocking() as s:
        assert s.predict(3) == 9.0
    print("ok")
