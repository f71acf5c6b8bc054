"""The end of a channel by which a stage is measured: nobody is left waiting where what it finds cannot be told."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.cli.findings import SetupTook, Step
from penstock.cli.measuring import _MeasuringEnd, _pickled
from penstock.runtime.launching import launcher
from penstock.worker.loop import work


def plain(x: int) -> int:
    return x


async def waits(x: int) -> int:
    return x


@pytest.mark.parametrize("target", [plain, waits])
def test_what_cannot_be_told_ends_the_measuring(target):
    told = []

    def tell(report):
        told.append(type(report))
        if report == Step("it: batch of 1"):
            raise OSError("nobody reads")

    service = ps.Service(target)
    launch = launcher(service.name, service.stages, 0, service.options, inline=True)(0)
    end = _MeasuringEnd("it", launch, [_pickled(1)], 1, tell, results=-1)
    with pytest.raises(OSError, match="nobody reads"):
        work(end, target=target, on_loaded=end.loaded)
    assert told == [SetupTook, Step]
