import pytest

from penstock.errors import ConfigError
from penstock.hosting import fault_points
from penstock.hosting.fault_points import FaultPoints, InjectedFault


def test_a_point_that_is_not_armed_does_nothing():
    FaultPoints({}).hit("after_claim")
    FaultPoints({"PENSTOCK_FAILPOINTS": "before_commit=raise"}).hit("after_claim")


def test_a_point_fails_once():
    points = FaultPoints({"PENSTOCK_FAILPOINTS": "after_claim=raise, before_commit=raise"})
    for point in ("after_claim", "before_commit"):
        with pytest.raises(InjectedFault, match=point):
            points.hit(point)
        points.hit(point)


def test_a_point_waits_for_the_visit_that_counts():
    points = FaultPoints({"PENSTOCK_FAILPOINTS": "after_claim=raise:3"})
    points.hit("after_claim")
    points.hit("after_claim")
    with pytest.raises(InjectedFault):
        points.hit("after_claim")
    points.hit("after_claim")


@pytest.mark.parametrize("text", ["after_claim", "after_claim=explode", "=kill", "after_claim=kill:soon"])
def test_what_cannot_be_read_is_told(text):
    with pytest.raises(ConfigError, match="PENSTOCK_FAILPOINTS"):
        FaultPoints({"PENSTOCK_FAILPOINTS": text})


def test_the_points_of_a_process_are_read_once(monkeypatch):
    monkeypatch.setattr(fault_points, "_points", None)
    monkeypatch.setenv("PENSTOCK_FAILPOINTS", "here=raise")
    with pytest.raises(InjectedFault):
        fault_points.hit("here")
    monkeypatch.setenv("PENSTOCK_FAILPOINTS", "there=raise")
    fault_points.hit("there")
