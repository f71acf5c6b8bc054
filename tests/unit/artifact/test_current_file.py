from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from night import examples
from penstock.artifact import current_file
from penstock.artifact.current_file import (
    CurrentRecord,
    HistoryEntry,
    number_of,
    number_of_run,
    prunable,
    published,
    record_from_json,
    record_to_json,
    rollback_target,
    rolled_back,
)
from penstock.errors import ArtifactInvalid
from rows import each

AT = "2026-11-23T00:00:00Z"


def digest(letter):
    return letter * 64


def history(*moves):
    """A record after moves: a letter publishes the artifact of that digest, a number goes back to that version."""
    record = None
    for move in moves:
        record = rolled_back(record, move, AT) if isinstance(move, int) else published(record, digest(move), AT)
    return record


@each(
    ("moves", "there", "target"),
    [
        ("a", {1}, None),
        ("ab", {1, 2}, 1),
        ("abc", {1, 2, 3}, 2),
        ("abc", {1, 3}, 1),
        ("abc", {3}, None),
        (("a", "b", "c", 2), {1, 2, 3}, 1),
        (("a", "b", "c", 2, 1), {1, 2, 3}, None),
        (("a", "b", "c", 1), {1, 2, 3}, None),
        (("a", "b", "c", 1, 3), {1, 2, 3}, 1),
        (("a", "b", "c", 2, 3), {1, 2, 3}, 2),
        (("a", "b", 1, "c"), {1, 2, 3}, 1),
        (("a", "b", "c", 2, "d"), {1, 2, 3, 4}, 2),
        (("a", "b", "c", 2, "d", 2), {1, 2, 3, 4}, 1),
    ],
)
def test_a_rollback_undoes_and_never_returns_to_what_was_left(moves, there, target):
    assert rollback_target(history(*moves), there) == target


def test_an_artifact_has_its_number_while_its_version_is_there():
    record = history("a", "b", "a")
    assert number_of(record, digest("a"), {1, 2, 3}) == 3
    assert number_of(record, digest("a"), {1, 2}) == 1
    assert number_of(record, digest("a"), {2}) is None
    assert number_of(record, digest("c"), {1, 2, 3}) is None
    assert number_of(None, digest("a"), set()) is None


def test_a_run_has_its_number_be_its_version_there_or_not():
    record = published(published(history("a"), digest("b"), AT, "r1"), digest("c"), AT)
    assert (number_of_run(record, "r1"), number_of_run(record, "r2"), number_of_run(None, "r1")) == (2, None, None)
    assert number_of_run(rolled_back(published(record, digest("d"), AT), 2, AT), "r1") == 2


@pytest.mark.parametrize(
    ("moves", "there", "keep", "removed"),
    [
        ("abcde", {1, 2, 3, 4, 5}, 2, [1, 2, 3]),
        ("abcde", {1, 2, 3, 4, 5}, 1, [1, 2, 3]),
        ("abcde", {1, 2, 3, 4, 5}, 5, []),
        ("abcde", {1, 2, 3, 4, 5}, 9, []),
        (("a", "b", "c", "d", "e", 3), {1, 2, 3, 4, 5}, 1, [1, 4]),
        ("abcde", {1, 3, 5}, 1, [1]),
        ("abcde", {1, 5, 6}, 1, []),
        ("a", {1}, 1, []),
    ],
)
def test_old_versions_are_removed_but_never_the_current_or_what_a_rollback_goes_to(moves, there, keep, removed):
    assert prunable(history(*moves), there, keep) == removed


def test_a_record_is_read_as_it_was_written():
    record = rolled_back(published(history("a"), digest("b"), AT, "r1"), 1, AT)
    content = record_to_json(record)
    assert record_from_json(content) == record
    assert json.loads(content) == {
        "schema": 1,
        "version": 1,
        "digest": digest("a"),
        "history": [
            {"version": 1, "digest": digest("a"), "at": AT, "action": "publish"},
            {"version": 2, "digest": digest("b"), "at": AT, "action": "publish", "run": "r1"},
            {"version": 1, "digest": digest("a"), "at": AT, "action": "rollback"},
        ],
    }


def refusal(content):
    with pytest.raises(ArtifactInvalid) as caught:
        record_from_json(content)
    assert caught.value.file == "CURRENT"
    return str(caught.value)


def as_dict():
    return json.loads(record_to_json(history("a", "b", 1)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"more": 1}, "unknown field `more`"),
        ({"schema": 2}, "schema 2, but this Penstock reads only schema 1"),
        ({"version": True}, "Expected `int`"),
        ({"version": 2}, "version 2 is named as current, but the history ends with 1"),
        ({"digest": digest("b")}, "version 1 is named as current, but the history ends with 1"),
        ({"history": []}, "the history is empty"),
    ],
)
def test_a_record_that_cannot_be_is_refused(change, said):
    assert said in refusal(json.dumps({**as_dict(), **change}).encode())


@each(
    ("place", "change", "said"),
    [
        (0, {"version": 2}, "entry 1 publishes version 2, but the next version is 1"),
        (1, {"version": 1}, "entry 2 publishes version 1, but the next version is 2"),
        (1, {"version": 3}, "entry 2 publishes version 3, but the next version is 2"),
        (1, {"digest": digest("B")}, "the digest of version 2 is not 64 hexadecimal digits"),
        (1, {"run": ""}, "the run of version 2 is '', which is not a valid name of a run"),
        (1, {"at": "yesterday"}, "Invalid isoformat"),
        (1, {"at": "2026-11-23\x1b00:00:00Z"}, r"entry 2 has the time '2026-11-23\x1b00:00:00Z', which is not valid"),
        (1, {"action": "prune"}, "Invalid enum value 'prune'"),
        (1, {"more": 1}, "unknown field `more`"),
        (2, {"version": 0}, "entry 3 rolls back to version 0, which was never published"),
        (2, {"version": 3}, "entry 3 rolls back to version 3, which was never published"),
        (2, {"digest": digest("b")}, "entry 3 differs from the entry that published version 1"),
        (2, {"run": "r1"}, "entry 3 differs from the entry that published version 1"),
    ],
)
def test_a_history_that_cannot_be_is_refused(place, change, said):
    found = as_dict()
    found["history"][place] |= change
    assert said in refusal(json.dumps(found).encode())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"schema": 1, "schema": 1}', b"NaN"])
def test_what_is_no_record_at_all_is_refused(content):
    assert refusal(content).startswith("CURRENT: ")


def test_a_history_that_could_not_be_read_again_is_not_written(monkeypatch):
    monkeypatch.setattr(current_file, "LARGEST_CURRENT", len(record_to_json(history("a", "b"))))
    record_to_json(history("b", "a"))
    with pytest.raises(ArtifactInvalid, match=r"more than [0-9]+ bytes: publish into another directory"):
        record_to_json(history("a", "b", "c"))


MANY = 20_000
"""With as many steps for each of them as there are of them, each of these tests would take half a minute or more."""


@pytest.fixture
def long_history():
    """A record of many publishes and then as many rollbacks, each by one version."""
    publishes = [HistoryEntry(number, digest("a"), AT, "publish") for number in range(1, MANY + 1)]
    rollbacks = [HistoryEntry(number, digest("a"), AT, "rollback") for number in range(MANY - 1, 2, -1)]
    return CurrentRecord(1, 3, digest("a"), (*publishes, *rollbacks))


@pytest.fixture
def counted(monkeypatch):
    """How often the history is gone through for what was published."""
    calls = []
    publishes = current_file.publishes
    monkeypatch.setattr(current_file, "publishes", lambda record: calls.append(1) or publishes(record))
    return calls


def test_the_history_is_gone_through_once_and_not_for_each_version(long_history, counted):
    there = frozenset(range(1, MANY + 1))
    assert rollback_target(long_history, there) == 2
    assert prunable(long_history, there, 2) == [1, *range(4, MANY - 1)]
    assert len(counted) == 1


def test_a_long_history_of_rollbacks_up_and_down_is_a_stack(long_history):
    publishes = long_history.history[:MANY]
    jumps = [HistoryEntry(n, digest("a"), AT, "rollback") for k in range(1, MANY // 2) for n in (k, MANY - k)]
    record = CurrentRecord(1, jumps[-1].version, digest("a"), (*publishes, *jumps))
    assert rollback_target(record, frozenset(range(1, MANY + 1))) == MANY // 2 - 1


def test_a_key_that_is_there_twice_is_found_among_many():
    keys = ", ".join(f'"{number}": 1' for number in range(MANY))
    assert "the key 'twice' is given twice" in refusal(f'{{{keys}, "twice": 1, "twice": 2}}'.encode())


class Records(RuleBasedStateMachine):
    """Publish, roll back and prune, compared with lists: of what was published, and of what is to be gone back to."""

    def __init__(self):
        super().__init__()
        self.record = None
        self.digests = []
        self.runs = []
        self.gone = set()
        self.undo = []

    def there(self):
        return {number for number in range(1, len(self.digests) + 1) if number not in self.gone}

    @rule(letter=st.sampled_from("abcd"), run=st.sampled_from([None, "r1", "r2"]))
    def publish(self, letter, run):
        number = number_of(self.record, digest(letter), self.there())
        expected = [n for n in sorted(self.there(), reverse=True) if self.digests[n - 1] == letter]
        assert number == (expected[0] if expected else None)
        assert number_of_run(self.record, "r1") == (self.runs.index("r1") + 1 if "r1" in self.runs else None)
        if number is None:
            self.record = published(self.record, digest(letter), AT, run)
            self.digests.append(letter)
            self.runs.append(run)
            self.undo.append(len(self.digests))

    @precondition(lambda self: self.record is not None)
    @rule()
    def go_back(self):
        target = rollback_target(self.record, self.there())
        below = [number for number in self.undo[:-1] if number not in self.gone]
        assert target == (below[-1] if below else None)
        if target is not None:
            self.record = rolled_back(self.record, target, AT)
            while self.undo[-1] != target:
                self.undo.pop()

    @precondition(lambda self: self.record is not None)
    @rule(data=st.data())
    def go_to(self, data):
        target = data.draw(st.sampled_from(sorted(self.there())))
        if target != self.record.version:
            self.record = rolled_back(self.record, target, AT)
            if target in self.undo:
                while self.undo[-1] != target:
                    self.undo.pop()
            else:
                self.undo.append(target)

    @precondition(lambda self: self.record is not None)
    @rule(keep=st.integers(1, 4))
    def prune(self, keep):
        there = sorted(self.there())
        spared = {self.undo[-1], *there[-keep:], *[n for n in self.undo[:-1] if n in there][-1:]}
        assert prunable(self.record, self.there(), keep) == [n for n in there if n not in spared]
        self.gone |= set(there) - spared

    @invariant()
    def the_current_version_is_there_and_the_record_can_be_read(self):
        if self.record is not None:
            assert self.record.version == self.undo[-1]
            assert self.record.digest == digest(self.digests[self.undo[-1] - 1])
            assert self.record.version in self.there()
            assert self.record.last == len(self.digests)
            assert record_from_json(record_to_json(self.record)) == self.record


TestRecords = Records.TestCase
TestRecords.settings = settings(max_examples=examples(40), stateful_step_count=30)
