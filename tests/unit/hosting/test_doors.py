import pytest

from penstock.hosting.doors import Doors


class Part:
    """A door, or what is behind one; writes down what it is told."""

    def __init__(self, name, told):
        self.name, self.told = name, told

    async def start(self):
        self.told.append(f"start {self.name}")

    def stop_accepting(self):
        self.told.append(f"stop {self.name}")

    def leave_soon(self):
        self.told.append(f"leave soon {self.name}")

    async def see_out(self, seconds):
        self.told.append(f"see out {self.name} {seconds}")

    def let_go(self):
        self.told.append(f"let go {self.name}")

    async def close(self, grace=None):
        self.told.append(f"close {self.name} {grace}")


@pytest.fixture
def told():
    return []


@pytest.fixture
def doors(told):
    return Doors([Part("a", told), Part("b", told)], [Part("behind", told)])


async def test_what_is_behind_is_ready_before_the_doors_open(doors, told):
    await doors.start()
    assert told == ["start behind", "start a", "start b"]


async def test_what_is_behind_keeps_nobody_waiting_and_ends_last(doors, told):
    await doors.see_out(3)
    assert told == ["let go behind", "see out a 3", "see out b 3"]
    told.clear()
    await doors.close(5)
    assert told == ["let go behind", "close a 5", "close b 5", "close behind None"]


async def test_nothing_is_accepted_by_any_door(doors, told):
    doors.stop_accepting()
    assert told == ["stop a", "stop b"]


async def test_every_door_is_told_that_the_end_is_near_and_what_is_behind_goes_on(doors, told):
    doors.leave_soon()
    assert told == ["leave soon a", "leave soon b"]
