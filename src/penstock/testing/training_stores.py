"""The suite that every training store of embedding rows passes: subclass `TrainingStoreSuite`, override `open`.

    class TestMyTrainingStore(TrainingStoreSuite):
        def open(self):
            return MyTrainingStore(new_place())

A store that several connections share overrides `open_again` too.  Each test opens stores of its own, and closes them.
"""

from __future__ import annotations

import tempfile
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock.embeddings.opening import open_training_store
from penstock.embeddings.row_optimizers import SGD, Adagrad, SparseAdam
from penstock.embeddings.rules import Ids, Rows, constant, init, zeros
from penstock.embeddings.training_store import Fetched, TableSpec, TrainingStore
from penstock.errors import ConfigError, TableMismatch
from penstock.testing.stores import at_once

WIDTH = 3
THREADS = 6
ROUNDS = 20
SPEC = TableSpec("user/embedding", WIDTH, ids="any", missing=init(7), optimizer=SGD(lr=0.5))
ADAM = TableSpec("adam", WIDTH, ids="any", missing=zeros(), optimizer=SparseAdam(lr=0.1))
DENSE = TableSpec("dense", WIDTH, size=100, missing=constant([1, 2, 3]), optimizer=Adagrad(lr=0.5, lr_decay=0.1))
FAR = (-(2**63), -1, 0, 5, 2**31, 2**63 - 1)


def array(*ids: int) -> Ids:
    """These ids, as a store takes them."""
    return np.array(ids, np.int64)


def rows_of(ids: Ids, width: int = WIDTH) -> Rows:
    """Rows that differ from id to id and from column to column, and add up without rounding."""
    return ((ids % 1000)[:, None] * 4 + np.arange(width)).astype(np.float32)


def spread(count: int) -> Ids:
    """Distinct ids from far apart, in no order."""
    return np.random.default_rng(3).permutation(np.arange(count, dtype=np.int64) * 10_000_019 - 2**40)


class TrainingStoreSuite:
    """Its tests: each is a behaviour of the Protocol."""

    def open(self) -> TrainingStore:
        """A new store without tables."""
        raise NotImplementedError

    def open_again(self, store: TrainingStore) -> TrainingStore:
        """Another connection to the same tables; the same object where there is only one."""
        return store

    def test_a_row_that_is_not_there_is_the_rules_and_is_not_made_by_reading(self) -> None:
        """Whatever the rule."""
        with closing(self.open()) as store:
            for spec, ids in ((SPEC, array(*FAR)), (ADAM, array(*FAR)), (DENSE, array(0, 99, 5))):
                store.create(spec)
                rows, found = store.fetch(spec.name, ids)
                assert not found.any()
                assert rows.dtype == np.float32
                assert (rows == spec.missing.rows(ids, WIDTH, spec.name)).all()
                assert store.count(spec.name) == 0

    def test_the_first_update_begins_with_the_rules_row(self) -> None:
        """Also of ids at both ends of int64."""
        with closing(self.open()) as store:
            store.create(SPEC)
            ids = array(*FAR)
            store.apply(SPEC.name, ids[::2], rows_of(ids[::2]))
            rows, found = store.fetch(SPEC.name, ids)
            assert found.tolist() == [True, False] * 3
            expected = SPEC.missing.rows(ids, WIDTH, SPEC.name)
            expected[::2] -= np.float32(0.5) * rows_of(ids[::2])
            assert (rows == expected).all()
            assert store.count(SPEC.name) == 3

    def test_the_gradients_of_an_id_are_added_up_before_its_step(self) -> None:
        """Adagrad would tell two steps from one with the sum."""
        with closing(self.open()) as store:
            store.create(DENSE)
            ids = array(7, 3, 7, 7, 99, 3)
            grads = rows_of(np.arange(6))
            store.apply(DENSE.name, ids, grads)
            total = np.array([grads[1] + grads[5], grads[0] + grads[2] + grads[3], grads[4]])
            expected = np.tile(np.array([1, 2, 3], np.float32), (3, 1))
            DENSE.optimizer.update(expected, DENSE.optimizer.first_state(3, WIDTH), total, 0.5, 1)
            assert (store.fetch(DENSE.name, array(3, 7, 99)).rows == expected).all()
            assert store.count(DENSE.name) == 3

    def test_the_steps_are_those_of_the_table_and_its_optimizer(self) -> None:
        """A row that comes late has the number of the table's step, and a state of its own."""
        with closing(self.open()) as store:
            for spec in (ADAM, DENSE):
                store.create(spec)
                rows = spec.missing.rows(np.arange(10), WIDTH, spec.name)
                state = spec.optimizer.first_state(10, WIDTH)
                for step, ids in enumerate((array(1, 2), array(2, 3), array(9), array(1, 9)), 1):
                    store.apply(spec.name, ids, rows_of(ids))
                    some, its_state = rows[ids], state[ids]
                    spec.optimizer.update(some, its_state, rows_of(ids), spec.optimizer.lr, step)
                    rows[ids], state[ids] = some, its_state
                assert (store.fetch(spec.name, np.arange(10)).rows == rows).all()

    def test_a_learning_rate_of_a_call_is_for_that_call(self) -> None:
        """And 0 is one, which makes the row all the same."""
        with closing(self.open()) as store:
            store.create(SPEC)
            store.apply(SPEC.name, array(4), rows_of(array(4)), lr=0.0)
            first = SPEC.missing.rows(array(4), WIDTH, SPEC.name)
            rows, found = store.fetch(SPEC.name, array(4))
            assert found.all()
            assert (rows == first).all()
            store.apply(SPEC.name, array(4), rows_of(array(4)), lr=2.0)
            assert (store.fetch(SPEC.name, array(4)).rows == first - 2 * rows_of(array(4))).all()

    def test_loaded_rows_are_as_they_are_with_new_state(self) -> None:
        """The last row of an id counts."""
        with closing(self.open()) as store:
            store.create(DENSE)
            store.apply(DENSE.name, array(1, 2), rows_of(array(11, 12)))
            store.load(DENSE.name, array(2, 5, 2), rows_of(array(20, 50, 22)))
            expected = rows_of(array(22, 50))
            assert (store.fetch(DENSE.name, array(2, 5)).rows == expected).all()
            store.apply(DENSE.name, array(2, 5), rows_of(array(8, 9)))
            DENSE.optimizer.update(expected, DENSE.optimizer.first_state(2, WIDTH), rows_of(array(8, 9)), 0.5, 2)
            assert (store.fetch(DENSE.name, array(2, 5)).rows == expected).all()

    def test_no_ids_are_a_call_like_any_other(self) -> None:
        """Nothing is made, and no step is counted."""
        with closing(self.open()) as store:
            store.create(DENSE)
            store.apply(DENSE.name, array(), rows_of(array()))
            store.load(DENSE.name, array(), rows_of(array()))
            assert store.fetch(DENSE.name, array()).rows.shape == (0, WIDTH)
            store.apply(DENSE.name, array(1), rows_of(array(1)))
            expected = DENSE.missing.rows(array(1), WIDTH)
            DENSE.optimizer.update(expected, DENSE.optimizer.first_state(1, WIDTH), rows_of(array(1)), 0.5, 1)
            assert (store.fetch(DENSE.name, array(1)).rows == expected).all()

    def test_a_scan_gives_all_rows_in_ascending_ids_and_in_chunks(self) -> None:
        """The table has grown many times over by then."""
        with closing(self.open()) as store:
            store.create(SPEC)
            ids = spread(5000)
            for some in np.array_split(ids, 7):
                store.load(SPEC.name, some, rows_of(some))
            chunks = list(store.scan(SPEC.name, chunk=1999))
            assert [len(some) for some, _ in chunks] == [1999, 1999, 1002]
            assert (np.concatenate([some for some, _ in chunks]) == np.sort(ids)).all()
            assert (np.concatenate([rows for _, rows in chunks]) == rows_of(np.sort(ids))).all()
            assert store.count(SPEC.name) == 5000

    def test_a_table_that_is_there_is_made_again_if_it_is_equal_but_for_its_learning_rate(self) -> None:
        """Another one is refused, by the name of the field."""
        with closing(self.open()) as store, closing(self.open_again(store)) as other:
            store.create(SPEC)
            other.create(_changed(SPEC, optimizer=SGD(lr=7.0)))
            assert other.tables() == {SPEC.name: SPEC}
            for field, value in (
                ("width", 4),
                ("missing", init(8)),
                ("optimizer", Adagrad(lr=0.5)),
                ("ids", "dense"),
            ):
                changed = {field: value} | ({"size": 3} if field == "ids" else {})
                error = _raised(TableMismatch, other.create, _changed(SPEC, **changed))
                assert SPEC.name in error
                assert field in error
            assert store.tables() == {SPEC.name: SPEC}

    def test_tables_of_one_width_are_not_mixed_up(self) -> None:
        """Nor are names that differ little."""
        with closing(self.open()) as store, closing(self.open_again(store)) as other:
            names = ("a", "a/b", "a.b", "A", "..", "a%2Fb", "x" * 200)
            for number, name in enumerate(names):
                store.create(_changed(SPEC, name=name))
                store.load(name, array(1, 2), rows_of(array(10 * number, 10 * number + 1)))
            assert set(other.tables()) == set(names)
            for number, name in enumerate(names):
                assert (other.fetch(name, array(2, 1)).rows == rows_of(array(10 * number + 1, 10 * number))).all()

    def test_wrong_calls_are_refused_and_change_nothing(self) -> None:
        """No dtype is cast."""
        with closing(self.open()) as store:
            store.create(DENSE)
            one, row = array(1), rows_of(array(1))
            calls: list[tuple[type[Exception], Any, tuple[Any, ...]]] = [
                (ConfigError, store.fetch, (one.astype(np.int32),)),
                (ConfigError, store.fetch, ([1],)),
                (ConfigError, store.fetch, (one[None],)),
                (ConfigError, store.apply, (one, row.astype(np.float64))),
                (ConfigError, store.apply, (one, row[:, :2])),
                (ConfigError, store.apply, (array(1, 2), row)),
                (ConfigError, store.apply, (one, row, -1.0)),
                (ConfigError, store.apply, (one, row, float("nan"))),
                (ConfigError, store.load, (one, row.astype(np.float16))),
                (IndexError, store.fetch, (array(3, 100),)),
                (IndexError, store.apply, (array(-1), row)),
                (IndexError, store.load, (array(100), row)),
            ]
            for kind, call, arguments in calls:
                assert DENSE.name in _raised(kind, call, DENSE.name, *arguments)
            assert store.count(DENSE.name) == 0
            for call, arguments in (
                (store.count, ()),
                (store.fetch, (one,)),
                (store.apply, (one, row)),
                (store.load, (one, row)),
            ):
                _raised(KeyError, call, "nothing", *arguments)

    def test_many_threads_lose_no_update(self) -> None:
        """Half of them have a connection of their own; each row is one that all of them change."""
        with closing(self.open()) as store, closing(self.open_again(store)) as other:
            store.create(_changed(SPEC, missing=zeros(), optimizer=SGD(lr=1.0)))
            ids = spread(300)
            before = threading.Barrier(THREADS)

            def work(place: TrainingStore, seed: int) -> None:
                order = np.random.default_rng(seed)
                before.wait(60)
                for _ in range(ROUNDS):
                    some = order.permutation(ids)
                    place.apply(SPEC.name, some, -rows_of(some))
                    seen = place.fetch(SPEC.name, ids).rows
                    times = seen[:, 2] / rows_of(ids)[:, 2]
                    assert (seen == times[:, None] * rows_of(ids)).all(), "half a row was read"

            at_once([partial(work, (store, other)[n % 2], n) for n in range(THREADS)])
            assert (store.fetch(SPEC.name, ids).rows == THREADS * ROUNDS * rows_of(ids)).all()

    def test_a_table_is_filled_once_and_again_after_an_error(self) -> None:
        """Others wait until it is."""
        with closing(self.open()) as store, closing(self.open_again(store)) as other:
            store.create(SPEC)

            def fail() -> None:
                with store.filling(SPEC.name) as fill:
                    assert fill
                    raise InterruptedError

            _raised(InterruptedError, fail)
            filled: list[bool] = []

            def work(place: TrainingStore) -> None:
                with place.filling(SPEC.name) as fill:
                    if fill:
                        place.load(SPEC.name, array(1), rows_of(array(1)))
                    filled.append(fill)
                    assert place.count(SPEC.name) == 1

            at_once([partial(work, (store, other)[n % 2]) for n in range(4)])
            assert filled == [True, False, False, False]

    def test_what_is_saved_is_a_shared_store_of_the_same_rows_and_states(self) -> None:
        """Steps go on from there as in the store itself, which has them apart."""
        with tempfile.TemporaryDirectory() as folder, closing(self.open()) as store:
            for spec in (ADAM, DENSE, SPEC):
                store.create(spec)
            ids = np.arange(0, 100, 3)
            for some in (ids, ids[4:9], ids + 1):
                for spec in (ADAM, DENSE):
                    store.apply(spec.name, some % 100, rows_of(some))
            with store.filling(DENSE.name) as fill:
                assert fill
            path = Path(folder) / "rows"
            store.save(path)
            with closing(open_training_store(f"shared:{path}")) as saved:
                assert saved.tables() == {spec.name: spec for spec in (ADAM, DENSE, SPEC)}
                everything = np.arange(100)
                for spec in (ADAM, DENSE, SPEC):
                    assert _same(saved.fetch(spec.name, everything), store.fetch(spec.name, everything))
                for each in (saved, store):
                    for spec in (ADAM, DENSE):
                        each.apply(spec.name, ids, rows_of(ids + 1))
                for spec in (ADAM, DENSE):
                    assert _same(saved.fetch(spec.name, everything), store.fetch(spec.name, everything))
                saved.apply(SPEC.name, ids, rows_of(ids))
                assert store.count(SPEC.name) == 0
                for spec, expected in ((DENSE, False), (ADAM, True)):
                    with saved.filling(spec.name) as fill:
                        assert fill is expected
            assert [each.name for each in Path(folder).iterdir()] == ["rows"]

    def test_nothing_is_saved_where_something_is(self) -> None:
        """Or where there is no folder to save it in."""
        with tempfile.TemporaryDirectory() as folder, closing(self.open()) as store:
            store.create(SPEC)
            for path in (Path(folder), Path(folder) / "no" / "folder"):
                assert str(path.name) in _raised(ConfigError, store.save, path)
            assert list(Path(folder).iterdir()) == []

    def test_no_save_has_an_update_in_half(self) -> None:
        """Each update changes all rows by one, so the rows of every save are equal."""
        with tempfile.TemporaryDirectory() as folder, closing(self.open()) as store:
            store.create(_changed(SPEC, missing=zeros(), optimizer=SGD(lr=1.0)))
            ids = spread(2000)
            enough = threading.Event()

            def update() -> None:
                while not enough.is_set():
                    store.apply(SPEC.name, ids, -np.ones((len(ids), WIDTH), np.float32))

            def save() -> None:
                try:
                    for number in range(5):
                        store.save(Path(folder) / f"{number}")
                finally:
                    enough.set()

            at_once([update, save])
            for number in range(5):
                with closing(open_training_store(f"shared:{Path(folder) / str(number)}")) as saved:
                    assert len({float(value) for _, rows in saved.scan(SPEC.name) for value in rows.flat}) <= 1


def _changed(spec: TableSpec, **fields: Any) -> TableSpec:
    return TableSpec(**{name: getattr(spec, name) for name in spec.__struct_fields__} | fields)


def _raised(kind: type[Exception], call: Any, *arguments: Any) -> str:
    try:
        call(*arguments)
    except kind as error:
        return str(error)
    raise AssertionError(f"{call.__name__}{arguments} raised no {kind.__name__}")


def _same(one: Fetched, other: Fetched) -> bool:
    return all((a == b).all() for a, b in zip(one, other, strict=True))
