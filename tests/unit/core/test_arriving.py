"""One body in arrival, who is moved out of a slab for whom, and random histories of many against what each has sent."""

from __future__ import annotations

from random import Random

import pytest

from night import histories
from penstock.core.arriving import MOVED_BYTES_PER_TURN, MOVED_PER_BODY, Arriving, ArrivingBody
from rows import each

MIB = 1024 * 1024


class Slab:
    """Room for so many bytes; how they lie does not matter."""

    def __init__(self, nbytes: int) -> None:
        self.free = nbytes
        self.inline: dict[str, int] = {}
        self.arriving = Arriving(nbytes, self.take, self.inline)

    def take(self, nbytes: int) -> memoryview | None:
        if nbytes > self.free:
            return None
        self.free -= nbytes
        return memoryview(Piece(self, nbytes))

    def body(self, announced: int, came: int, now: float = 100.0) -> ArrivingBody:
        """One whose first bytes came now, with a piece if it gets one."""
        body = ArrivingBody(announced)
        body.coming(came, now)
        body.piece = self.arriving.piece_for(body, now)
        body.put(bytes(came))
        return body


class Piece(bytearray):
    """Its bytes are free once nobody has a view of it."""

    def __init__(self, slab: Slab, nbytes: int) -> None:
        super().__init__(nbytes)
        self.slab = slab

    def __del__(self) -> None:
        self.slab.free += len(self)


@pytest.fixture
def slab():
    return Slab(16 * MIB)


# ---- one body


def test_a_body_without_a_piece_gathers_in_memory_of_its_own():
    body = ArrivingBody(6)
    for part in (b"ab", b"c", b"def"):
        assert not body.whole
        assert body.room() is None
        body.coming(len(part), 1.0)
        body.put(part)
    assert (body.whole, body.came, body.content()) == (True, 6, b"abcdef")


def test_a_body_with_a_piece_lies_there_whether_it_is_put_or_received():
    body = ArrivingBody(6)
    body.coming(2, 1.0)
    body.piece = memoryview(bytearray(6))
    body.put(b"ab")
    room = body.room()
    assert len(room) == 4
    room[:3] = b"cde"
    body.coming(3, 1.0)
    assert len(body.room()) == 1
    body.coming(1, 1.0)
    body.put(b"f")
    assert body.whole
    assert body.content() is body.piece
    assert body.content() == b"abcdef"


@pytest.mark.parametrize("steps", [[6], [2, 4], [1, 1, 1, 1, 1, 1], [5, 9]])
def test_a_body_is_moved_out_in_any_steps(steps):
    body = ArrivingBody(8)
    body.piece = memoryview(bytearray(8))
    body.coming(6, 1.0)
    body.put(b"abcdef")
    copied = [body.move_out(most) for most in steps]
    assert sum(copied) == 6
    assert all(moved <= most for moved, most in zip(copied, steps, strict=True))
    assert body.piece is None
    assert body.move_out(9) == 0
    body.coming(2, 1.0)
    body.put(b"gh")
    assert body.content() == b"abcdefgh"


def test_what_comes_while_a_body_is_moved_out_goes_to_its_piece():
    body = ArrivingBody(8)
    body.piece = memoryview(bytearray(8))
    body.coming(4, 1.0)
    body.put(b"abcd")
    assert body.move_out(2) == 2
    body.coming(2, 1.0)
    body.put(b"ef")
    assert body.move_out(3) == 3
    assert body.piece is not None
    assert body.move_out(3) == 1
    assert body.piece is None
    body.coming(2, 1.0)
    body.put(b"gh")
    assert body.content() == b"abcdefgh"


def test_what_a_body_brought_is_that_of_the_last_second_in_half_seconds():
    body = ArrivingBody(1000)
    assert body.brought(50.0) == 0
    body.coming(1, 100.0)
    body.coming(10, 100.49)
    assert body.brought(100.49) == 11
    assert body.brought(100.99) == 11
    assert body.brought(101.0) == 0
    body.coming(100, 100.99)
    assert body.brought(100.99) == 111
    assert body.brought(101.0) == 100
    assert body.brought(101.49) == 100
    assert body.brought(101.5) == 0
    body.coming(5, 5000.0)
    assert body.brought(5000.0) == 5


# ---- all of them


def test_bodies_in_arrival_announce_half_of_the_slab_at_most(slab):
    bodies = [slab.body(2 * MIB, 9) for _ in range(5)]
    assert [body.piece is not None for body in bodies] == [True] * 4 + [False]
    assert slab.arriving.announced == 8 * MIB
    assert slab.inline == {"full": 1}


def test_a_body_that_announces_more_than_half_is_inline_and_moves_nobody_out(slab):
    small = slab.body(MIB, 1)
    assert slab.body(8 * MIB + 1, 9).piece is None
    assert small.piece is not None
    assert slab.inline == {"full": 1}


def test_a_body_that_has_arrived_makes_room_for_another(slab):
    first = slab.body(8 * MIB, 9)
    assert slab.body(MIB, 9).piece is None
    slab.arriving.arrived(first)
    slab.arriving.arrived(first)
    assert slab.arriving.announced == 0
    assert slab.body(MIB, 9).piece is not None
    slab.arriving.arrived(ArrivingBody(5))


def test_a_body_in_chunks_gets_no_piece_and_is_counted(slab):
    assert slab.arriving.piece_for(ArrivingBody(MIB, chunked=True), 1.0) is None
    assert slab.inline == {"chunked": 1}


def test_the_one_that_brought_least_in_the_last_second_makes_way(slab):
    bodies = [slab.body(2 * MIB, came) for came in (700, 500, 600, 500)]
    newer = slab.body(2 * MIB, 501)
    assert newer.piece is not None
    assert [body.piece is not None for body in bodies] == [True, False, True, True]
    assert slab.inline == {"moved": 1}
    assert slab.arriving.announced == 8 * MIB
    assert slab.free == 8 * MIB


def test_nobody_makes_way_for_one_that_has_brought_no_more(slab):
    bodies = [slab.body(4 * MIB, 500) for _ in range(2)]
    assert slab.body(4 * MIB, 500).piece is None
    assert all(body.piece is not None for body in bodies)
    assert slab.inline == {"full": 1}


def test_a_whole_body_that_finds_no_room_has_others_moved_out(slab):
    slow = [slab.body(4 * MIB, 1) for _ in range(2)]
    held = slab.body(8 * MIB, 8 * MIB)
    assert slab.free == 0
    assert slab.body(MIB, MIB).piece is not None
    assert [body.piece is not None for body in slow] == [False, True]
    del held


def test_only_some_are_moved_out_for_one(slab):
    bodies = [slab.body(8 * MIB // 64, 1) for _ in range(64)]
    assert slab.body(4 * MIB, 2).piece is None
    assert sum(body.piece is None for body in bodies) == MOVED_PER_BODY
    assert slab.inline == {"full": 1, "moved": MOVED_PER_BODY}


def test_a_body_of_which_much_came_is_moved_out_over_several_turns(slab):
    large = slab.body(8 * MIB, 2 * MIB + 5, now=100.0)
    assert not slab.arriving.busy
    assert slab.body(MIB, 9, now=102.0).piece is None
    assert slab.arriving.busy
    assert large.piece is not None
    assert slab.arriving.go_on()
    assert large.piece is not None
    assert slab.arriving.announced == 8 * MIB
    large.coming(10, 102.0)
    large.put(bytes(10))
    assert slab.arriving.go_on()
    assert large.piece is None
    assert slab.arriving.announced == 0
    assert slab.free == 16 * MIB
    assert slab.arriving.busy
    assert not slab.arriving.go_on()
    assert not slab.arriving.busy
    assert slab.inline == {"full": 1, "moved": 1}
    assert slab.body(8 * MIB, 9, now=102.0).piece is not None


def test_only_one_is_moved_out_at_a_time(slab):
    first, second = (slab.body(4 * MIB, 2 * MIB, now=100.0) for _ in range(2))
    assert slab.body(MIB, 9, now=102.0).piece is None
    assert slab.body(MIB, 9, now=102.0).piece is None
    slab.arriving.go_on()
    assert first.piece is None
    assert slab.body(4 * MIB, 9, now=102.0).piece is not None  # there is room for it
    assert slab.body(MIB, 9, now=102.0).piece is None  # this turn has copied what it may
    assert second.piece is not None
    assert not slab.arriving.go_on()


def test_all_that_is_copied_in_one_turn_is_bounded(slab):
    bodies = [slab.body(2 * MIB, MOVED_BYTES_PER_TURN // 3, now=100.0) for _ in range(4)]
    slab.body(8 * MIB, 9, now=102.0)
    left = [body.piece is not None for body in bodies]
    assert left == [False, False, False, True]
    assert slab.arriving.go_on()
    assert bodies[3].piece is None


def test_one_that_arrives_or_leaves_while_it_is_moved_out_is_moved_no_further(slab):
    large = slab.body(8 * MIB, 2 * MIB, now=100.0)
    slab.body(MIB, 9, now=102.0)
    large.piece = None
    slab.arriving.arrived(large)
    assert slab.free == 16 * MIB
    assert not slab.arriving.go_on()
    assert slab.inline == {"full": 1}


# ---- random histories


class Sender:
    """A client with one body, of which it knows every byte."""

    def __init__(self, slab: Slab, said: bytes) -> None:
        self.slab = slab
        self.said = said
        self.body = ArrivingBody(len(said))
        self.placed = False

    def bring(self, most: int, now: float, into_room: bool) -> None:
        """Send at most so many bytes more: with `into_room` they are received there, if there is some."""
        body = self.body
        first, room = body.came == 0, body.room()
        part = self.said[body.came : body.came + most]
        if into_room and room is not None:
            room[: len(part)] = part
            body.coming(len(part), now)
            return
        body.coming(len(part), now)
        if first:
            body.piece = self.slab.arriving.piece_for(body, now)
            self.placed = body.piece is not None
        body.put(part)

    def arrive(self) -> None:
        if self.body.whole:
            assert self.body.content() == self.said
        if self.placed:
            self.body.piece = None
            self.slab.arriving.arrived(self.body)


NOISE = Random(0).randbytes(8 * MIB)


@each("seed", range(histories(10)))
def test_random_histories_keep_every_byte_and_every_bound(seed):
    random, now = Random(seed), 100.0
    slab = Slab(8 * MIB)
    senders: list[Sender] = []
    for _ in range(300):
        now += random.choice([0.0, 0.01, 0.3, 1.2])
        match random.choice(["begin", "begin", "begin", "bring", "bring", "leave", "turn"]):
            case "begin":
                at = random.randrange(4 * MIB)
                senders.append(Sender(slab, NOISE[at : at + (1 << random.randrange(16, 23))]))
                senders[-1].bring(random.choice([1, 4096, 1 << 18, 1 << 20]), now, False)
            case "bring" if senders:
                random.choice(senders).bring(random.choice([1, 4096, 1 << 18, 1 << 20]), now, random.random() < 0.5)
            case "leave" if senders:
                senders.pop(random.randrange(len(senders))).arrive()
            case "turn":
                slab.arriving.go_on()
        for sender in [sender for sender in senders if sender.body.whole]:
            senders.remove(sender)
            sender.arrive()
        lying = [sender.body.announced for sender in senders if sender.body.piece is not None]
        assert slab.arriving.announced == sum(lying) <= 4 * MIB
        assert slab.free == 8 * MIB - sum(lying)
    for sender in senders:
        sender.arrive()
    assert slab.arriving.announced == 0
    assert slab.free == 8 * MIB
    assert slab.inline.get("moved", 0) > 0
