"""Shards of rows: how they are written, and which are refused."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from contextlib import closing
from hashlib import sha256
from math import inf
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mapped_tables import SAVED, map_tables, write_table
from penstock.embeddings import mapped_rows, shards
from penstock.embeddings.rules import init
from penstock.embeddings.shards import Shard, ShardedTable, shard_path, write_shards
from penstock.embeddings.training_store import TableShape
from penstock.errors import ArtifactInvalid, ConfigError, EmbeddingError

WIDTH = 3
ANY = TableShape("user/embedding", WIDTH, ids="any", missing=init(3))
ALL = TableShape("all", WIDTH, size=4000)
IDS = np.unique(np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 2000))
EVERY = np.arange(4000)
EVEN = 10**9 + 1000 * np.arange(2000)
"""Ids whose full shards are of one size."""


def rows_of(ids):
    return (ids[:, None] % 1000 + np.arange(WIDTH) / 4).astype(np.float32)


def written(folder, shape=ANY, ids=IDS, **options):
    return write_table(folder, shape, ids, rows_of(ids), **options)


def layouts(table):
    return [table.layout(number, SAVED) for number in range(1, len(table.shards) + 1)]


# -- written ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "ids"), [(ANY, IDS), (ALL, EVERY), (ALL, EVERY[::7])])
def test_safetensors_reads_what_was_written(tmp_path, shape, ids):
    safetensors = pytest.importorskip("safetensors")
    table = written(tmp_path, shape, ids)
    assert table.dense is (len(ids) == shape.size)
    start = 0
    for number, shard in enumerate(table.shards, 1):
        its = ids[start : start + shard.rows]
        with safetensors.safe_open(tmp_path / shard.file, "np") as file:
            assert set(file.keys()) == ({"rows"} if table.dense else {"ids", "index", "rows"})
            assert (file.get_tensor("rows") == rows_of(its)).all()
            if not table.dense:
                assert (file.get_tensor("ids") == its).all()
            assert file.metadata() == {
                "table": shape.name,
                "first": str(its[0]),
                "last": str(its[-1]),
                "shard": f"{number:05d}",
                "of": f"{len(table.shards):05d}",
                "saved": SAVED,
            }
        start += shard.rows
    assert start == len(ids)


@pytest.mark.parametrize(("shape", "ids"), [(ANY, IDS[:100]), (TableShape("few", WIDTH, size=300), EVERY[:300])])
@pytest.mark.parametrize("shard_bytes", [1, 5000, 2**29, 2**80])
def test_a_shard_is_as_large_as_it_may_be_and_its_rows_are_aligned(tmp_path, shape, ids, shard_bytes):
    table = written(tmp_path, shape, ids, shard_bytes=shard_bytes)
    for shard, layout in zip(table.shards, layouts(table), strict=True):
        assert (tmp_path / shard.file).stat().st_size == layout.size
        assert layout.size <= shard_bytes or shard.rows == 1
        assert (layout.rows_at % 4096, layout.ids_at % 8, layout.index_at % 8) == (0, 0, 0)
    if table.dense and shard_bytes == 5000:
        assert 0 <= shard_bytes - layouts(table)[0].size < 4 * WIDTH


def test_no_file_is_left_but_the_shards(tmp_path):
    tables = [written(tmp_path), written(tmp_path, ALL, EVERY)]
    there = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert there == {shard.file for table in tables for shard in table.shards}


def test_a_table_without_rows_has_no_file(tmp_path):
    assert write_shards(tmp_path, ANY, [(IDS[:0], rows_of(IDS[:0]))], rows=0, saved="", shard_bytes=9) == ()
    assert list(tmp_path.iterdir()) == []
    ShardedTable(ANY, 0, ()).check()


def test_a_table_that_became_full_meanwhile_has_no_ids_in_its_shards(tmp_path):
    found = write_shards(tmp_path, ALL, [(EVERY, rows_of(EVERY))], rows=7, saved=SAVED, shard_bytes=2**14)
    table = ShardedTable(ALL, 4000, found)
    table.check()
    assert len(found) > 1
    got = map_tables(tmp_path, [table]).fetch({"all": EVERY})["all"]
    assert (got.rows == rows_of(EVERY)).all()
    assert len(list((tmp_path / "tables" / "all").iterdir())) == len(found)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("user/embedding", "user%2Fembedding"),
        ("a.b", "a.b"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("x" * 200, "x" * 200),
        ("/" * 67, sha256(b"%2F" * 67).hexdigest()),
    ],
)
def test_a_table_s_folder_has_its_name_encoded(name, folder):
    assert shard_path(name, 3, 12) == f"tables/{folder}/shard-00003-of-00012.safetensors"


@pytest.mark.parametrize("chunks", [[[3, 2]], [[3, 3]], [[1, 5], [5, 6]], [[1, 5], [], [4]]])
def test_ids_that_do_not_ascend_are_refused(tmp_path, chunks):
    given = [(np.array(ids, np.int64), rows_of(np.array(ids, np.int64))) for ids in chunks]
    with pytest.raises(EmbeddingError, match="table 'user/embedding': the ids of its rows do not ascend from"):
        write_shards(tmp_path, ANY, given, rows=9, saved="", shard_bytes=2**29)


def test_rows_that_are_gone_are_noticed(tmp_path):
    with pytest.raises(EmbeddingError, match="table 'all' had all of its 4000 rows, but 3999 were read"):
        write_shards(tmp_path, ALL, [(EVERY[1:], rows_of(EVERY[1:]))], rows=4000, saved="", shard_bytes=2**14)


@pytest.mark.parametrize("shard_bytes", [0, -1, 1.5, inf, "1", None])
def test_a_size_that_cannot_be_is_refused(tmp_path, shard_bytes):
    with pytest.raises(ConfigError, match="shard_bytes must be a number of bytes of at least 1, got"):
        write_shards(tmp_path, ANY, [], rows=0, saved="", shard_bytes=shard_bytes)


def test_more_shards_than_their_numbers_can_tell_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MOST_SHARDS", 3)
    with pytest.raises(ConfigError, match="has more than 3 shards of 1 bytes; choose a greater shard_bytes"):
        written(tmp_path, ids=IDS[:4], shard_bytes=1)


# -- what is said of them ---------------------------------------------------------------------------------------------


def table_of(shape, *parts, rows=None, count=None, file=None):
    """A table with shards of these first ids, last ids and rows."""
    made = tuple(
        Shard(file or shard_path(shape.name, number, count or len(parts)), *part)
        for number, part in enumerate(parts, 1)
    )
    return ShardedTable(shape, sum(part[2] for part in parts) if rows is None else rows, made)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (table_of(ANY, (0, 9, 5), (9, 20, 5)), "shard 2 has the ids from 9 to 20, but must have those from 10 to 9223"),
        (table_of(ANY, (9, 0, 5)), "shard 1 has the ids from 9 to 0"),
        (table_of(ANY, (-(2**63) - 1, 0, 5)), "from -9223372036854775809 to 0, but must have those from -922337"),
        (table_of(ANY, (0, 2**63, 5)), "must have those from -9223372036854775808 to 9223372036854775807"),
        (table_of(ALL, (-1, 9, 5)), "from -1 to 9, but must have those from 0 to 3999"),
        (table_of(ALL, (0, 4000, 5)), "from 0 to 4000, but must have those from 0 to 3999"),
        (
            table_of(ALL, (0, 9, 10), (11, 3999, 3990)),
            "starts at id 11, but must start at 10: the table has all ids",
        ),
        (table_of(ALL, (0, 3998, 4000)), "shard 1 cannot have 4000 rows of ids from 0 to 3998"),
        (table_of(ANY, (0, 9, 0)), "cannot have 0 rows"),
        (table_of(ANY, (0, 9, 5), rows=6), "table 'user/embedding' has 6 rows, which is not the sum of its shards"),
        (table_of(ANY, rows=1), "has 1 rows"),
        (table_of(ANY, (0, 9, 5), count=2), "is the file 'tables/user%2Fembedding/shard-00001-of-00002"),
        (table_of(ANY, (0, 9, 5), file="../x"), r"is the file '\.\./x', but must be 'tables/user%2Fembedding/shard-0"),
    ],
)
def test_what_cannot_be_is_refused(table, words):
    with pytest.raises(ValueError, match=words):
        table.check()


# -- opened -----------------------------------------------------------------------------------------------------------


def opened(folder, table, **options):
    return map_tables(folder, [table], **options)


def descriptors_open():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def change(path, at, *contents):
    with path.open("r+b") as file:
        file.seek(at)
        for content in contents:
            file.write(content)


@pytest.fixture
def other(tmp_path):
    """A folder for another table or save."""
    (tmp_path / "other").mkdir()
    return tmp_path / "other"


def cut(path, table, other):
    os.truncate(path, path.stat().st_size - 1)


def lengthened(path, table, other):
    path.write_bytes(path.read_bytes() + b"\0")


def emptied(path, table, other):
    path.write_bytes(b"")


def swapped(path, table, other):
    path.write_bytes((path.parent / table.shards[1].file.rsplit("/")[-1]).read_bytes())


def of_another_table(path, table, other):
    shape = msgspec.structs.replace(ANY, name="user.embedding")
    path.write_bytes((other / written(other, shape, EVEN).shards[0].file).read_bytes())


def of_another_save(path, table, other):
    path.write_bytes((other / written(other, ids=EVEN, saved="a save!!").shards[0].file).read_bytes())


def of_another_width(path, table, other):
    change(path, 8, path.read_bytes()[8:600].replace(b",3]", b",4]"))


def longer_header(path, table, other):
    change(path, 0, (2**40).to_bytes(8, "little"))


def a_folder(path, table, other):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (cut, "bytes, but must have"),
        (lengthened, "bytes, but must have"),
        (emptied, "has 0 bytes, but must have"),
        (swapped, "is not shard 1 of table 'user/embedding' as this artifact was saved"),
        (of_another_table, "is not shard 1 of table 'user/embedding'"),
        (of_another_save, "is not shard 1 of table 'user/embedding'"),
        (of_another_width, "its header differs"),
        (longer_header, "its header differs"),
        (a_folder, "is not a regular file"),
    ],
)
def test_a_shard_that_is_another_is_not_opened(tmp_path, other, spoil, words):
    table = written(tmp_path, ids=EVEN)
    assert len({layout.size for layout in layouts(table)[:-1]}) == 1
    opened(tmp_path, table).close()
    spoil(tmp_path / table.shards[0].file, table, other)
    before = descriptors_open()
    with pytest.raises(ArtifactInvalid, match=words) as caught:
        opened(tmp_path, table)
    assert caught.value.file == table.shards[0].file
    del caught
    gc.collect()
    assert descriptors_open() == before


def test_a_shard_that_the_system_does_not_map_is_told_with_what_bounds_it(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    table = written(tmp_path)
    monkeypatch.setattr(mapped_rows.mmap, "mmap", full)
    with pytest.raises(
        ArtifactInvalid, match=r"safetensors cannot be mapped: Cannot allocate memory; raise `ulimit -v` .*"
    ):
        opened(tmp_path, table)


def test_another_save_than_the_manifest_s_is_told(tmp_path):
    with pytest.raises(ArtifactInvalid, match="its header differs"):
        opened(tmp_path, written(tmp_path), saved="another")


def test_wrong_contents_are_found_by_a_check_and_give_no_row_of_another_id(tmp_path):
    table = written(tmp_path)
    shard, layout = table.shards[1], table.layout(2, SAVED)
    path, whole = tmp_path / shard.file, (tmp_path / table.shards[1].file).read_bytes()
    ids = np.frombuffer(whole, np.int64, shard.rows, layout.ids_at)
    at_ids, at_index = layout.ids_at, layout.index_at
    cases = {
        "the ids from": [(at_ids, (ids[0] + 1).tobytes())],
        "of the manifest": [(at_index - 8, (ids[-1] - 1).tobytes())],
        "do not ascend": [(at_ids + 8, ids[1:3][::-1].tobytes())],
        "an index that does not match its ids": [(at_index, b"\xff" * 8 * layout.samples)],
        "an index that": [(at_index + 8 * layout.samples - 8, bytes(8))],
        "has an index": [(at_index, np.full(layout.samples, 2**63 - 1).tobytes())],
    }
    with closing(opened(tmp_path, table)) as store:
        store.check_contents()
        expected = store.fetch({ANY.name: IDS})[ANY.name].rows
    for words, changes in cases.items():
        for at, content in changes:
            change(path, at, content)
        with closing(opened(tmp_path, table)) as store:
            with pytest.raises(ArtifactInvalid, match=words) as caught:
                store.check_contents()
            assert caught.value.file == shard.file
            got = store.fetch({ANY.name: IDS})[ANY.name]
            rule = ANY.missing.rows(IDS, WIDTH, ANY.name)
            assert (got.rows[~got.found] == rule[~got.found]).all()
            if "index" in words:
                assert (got.rows[got.found] == expected[got.found]).all()
        path.write_bytes(whole)


# -- read -------------------------------------------------------------------------------------------------------------


def test_files_that_are_replaced_or_removed_stay_served(tmp_path, other):
    table = written(tmp_path)
    with closing(opened(tmp_path, table)) as store:
        expected = rows_of(IDS)
        for shard in table.shards[::2]:
            (tmp_path / shard.file).unlink()
        for shard in table.shards[1::2]:
            (other / "new").write_bytes(b"another file")
            (other / "new").rename(tmp_path / shard.file)
        assert (store.fetch({ANY.name: IDS})[ANY.name].rows == expected).all()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from Python 3.12 on
def test_a_fork_reads_as_its_parent_does(tmp_path):
    table = written(tmp_path)
    with closing(opened(tmp_path, table)) as store:
        assert reads_by_threads(store)
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if reads_by_threads(store) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert reads_by_threads(store)


def reads_by_threads(store):
    store._tables[ANY.name].from_disk = True
    return (store.fetch({ANY.name: IDS})[ANY.name].rows == rows_of(IDS)).all()


def test_many_threads_read_until_a_call_finds_its_rows_in_memory(tmp_path, monkeypatch):
    table = written(tmp_path)
    monkeypatch.setattr(mapped_rows, "ThreadPoolExecutor", lambda *_: Serial())
    few, many = mapped_rows.FEW_WAITS - 1, mapped_rows.FEW_WAITS
    waits, calls = iter([many, *16 * [0], few, few]), []

    def read(self, ids, rows, found):
        calls.append(len(ids))
        return next(waits)

    with closing(opened(tmp_path, table)) as store:
        store.fetch({ANY.name: IDS[:16]})
        store._tables[ANY.name].from_disk = False
        monkeypatch.setattr(mapped_rows._Table, "read", read)
        for _ in range(4):
            store.fetch({ANY.name: IDS[:1600]})
    assert calls == [1600, *16 * [100], 1600, 1600]


class Serial:
    """An executor of this thread."""

    def map(self, *arguments):
        return map(*arguments)

    def shutdown(self):
        pass


def test_no_memory_of_a_table_s_size_is_taken(tmp_path):
    ids = np.arange(0, 600_000, 3)
    shape = TableShape("t", 64, ids="any")
    table = write_table(tmp_path, shape, ids, np.ones((len(ids), 64), np.float32), shard_bytes=2**23)
    (tmp_path / "table").write_bytes(msgspec.json.encode([shape, table.rows, table.shards]))
    program = """
import sys
from pathlib import Path
import msgspec
import numpy as np
from mapped_tables import map_tables
from penstock.embeddings.shards import Shard, ShardedTable
from penstock.embeddings.training_store import TableShape

def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))

folder = Path(sys.argv[1])
told = msgspec.json.decode((folder / "table").read_bytes(), type=tuple[TableShape, int, tuple[Shard, ...]])
before = anonymous()
store = map_tables(folder, [ShardedTable(*told)])
for start in range(0, 600_000, 60_000):
    assert (store.fetch({"t": np.arange(start, start + 60_000, 3)})["t"].rows == 1).all()
print(anonymous() - before)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MALLOC_ARENA_MAX": "1"},
    )
    whole = sum((tmp_path / shard.file).stat().st_size for shard in table.shards) / 1024
    assert int(ran.stdout) < whole / 2, "kB of 50 000"
