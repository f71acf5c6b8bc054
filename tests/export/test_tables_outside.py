"""Models of PyTorch whose tables stay outside of the graph answer as the model does, whatever they look up."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from served import serving  # noqa: E402
from torch import nn  # noqa: E402

import penstock as ps  # noqa: E402
from penstock import embeddings as emb  # noqa: E402
from penstock import features as f  # noqa: E402
from penstock.artifact.opened_artifact import open_artifact  # noqa: E402
from penstock.artifact.proof import prove  # noqa: E402
from penstock.artifact.served_model import open_model  # noqa: E402
from penstock.embeddings.shards import shard_path  # noqa: E402
from penstock.errors import ArtifactInvalid, ExportRefused  # noqa: E402
from penstock.export import offloaded_model  # noqa: E402
from saved_artifacts import edit_manifest  # noqa: E402

WIDTH = 4
USERS, ITEMS = 1000, 60
FORMATS = ("onnx", "pt2")
SPEC = ps.Features(
    {"user": f.Ids(), "items": f.Ids(size=ITEMS, max_length=3), "weights": f.Numeric()},
)
ROWS = [
    {"user": user, "items": list(range(place, place + place % 4)), "weights": place / 3}
    for place, user in enumerate([5, 2**31 + 5, 2**24 + 1, 7, 0, 999, 5, -3, 2**40 + 7])
]
ASKED = [
    *ROWS,
    {"user": 77, "items": [], "weights": 2.0},
    {"user": 2**62, "items": [59, 1, 59], "weights": -1.0},
]


class Scored(nn.Module):
    """Base of the models: each makes vectors of the width of a row."""

    def __init__(self, many=1):
        super().__init__()
        self.user = nn.Embedding(USERS, WIDTH)
        self.out = nn.Linear(WIDTH * many, 2)

    def forward(self, user, items, items_weight, weights):
        found = self.vectors(user, items, items_weight * weights[:, None])
        return {"score": self.out(torch.cat(found, dim=1) * 100)}


class Plain(Scored):
    def vectors(self, user, items, weights):
        return [self.user(user)]


class Twice(Scored):
    """A table that is looked up twice, once by ids that are computed; and one with ids of two axes."""

    def __init__(self):
        super().__init__(3)
        self.items = nn.Embedding(ITEMS, WIDTH, padding_idx=0)

    def vectors(self, user, items, weights):
        return [self.user(user), self.user(user * 7 + items[:, 0] + 1), (self.items(items) * weights[..., None]).sum(1)]


class Bags(Scored):
    def __init__(self):
        super().__init__(3)
        self.weighted = nn.EmbeddingBag(ITEMS, WIDTH, mode="sum")
        self.mean = nn.EmbeddingBag(ITEMS, WIDTH, mode="mean", padding_idx=2)
        self.most = nn.EmbeddingBag(ITEMS, WIDTH, mode="max", padding_idx=0)

    def vectors(self, user, items, weights):
        return [self.weighted(items, per_sample_weights=weights), self.mean(items), self.most(items)]


class Flattened(Scored):
    """Ids whose first axis is not the batch: flattened with offsets, and those that are there alone."""

    def __init__(self):
        super().__init__(4)
        self.flat = nn.EmbeddingBag(ITEMS, WIDTH, mode="sum", padding_idx=0)
        self.last = nn.EmbeddingBag(ITEMS, WIDTH, mode="mean", include_last_offset=True)
        self.some = nn.EmbeddingBag(ITEMS, WIDTH, mode="sum")
        self.rows = nn.Embedding(ITEMS, WIDTH)

    def vectors(self, user, items, weights):
        count = items.shape[1]
        offsets = torch.arange(items.shape[0]) * count
        kept = items > 1
        lengths = kept.sum(1)
        where = torch.arange(items.shape[0])[:, None].expand_as(items)[kept]
        summed = torch.zeros(items.shape[0], WIDTH).index_add(0, where, self.rows(items[kept]))
        with_end = torch.arange(items.shape[0] + 1) * count
        return [
            self.flat(items.reshape(-1), offsets, per_sample_weights=weights.reshape(-1)),
            self.last(items.reshape(-1), with_end),
            self.some(items[kept], lengths.cumsum(0) - lengths),
            summed,
        ]


class Constant(Scored):
    """Ids that no input has a part in: all of a table, and a single one."""

    def __init__(self):
        super().__init__(3)
        self.all, self.one = nn.Embedding(5, WIDTH), nn.Embedding(ITEMS, WIDTH)

    def vectors(self, user, items, weights):
        each = self.user(user)
        weight = torch.softmax(each @ self.all(torch.arange(5)).T, dim=1)
        return [each, weight @ self.all(torch.arange(5)), self.one(torch.tensor(7)).expand(user.shape[0], WIDTH)]


class Shared(Scored):
    """A layer at two paths, and an int32 where every id fits one."""

    def __init__(self):
        super().__init__(2)
        self.first = nn.ModuleDict({"table": nn.Embedding(ITEMS, WIDTH)})
        self.second = self.first

    def vectors(self, user, items, weights):
        return [self.first["table"](items[:, 0].int()), self.second["table"](items[:, 1])]


def trained(kind, *, filled=False):
    """The rows of a model; unless it is `filled`, those alone are stored that were trained."""
    torch.manual_seed(1)
    with contextlib.nullcontext() if filled else emb.placeholders():
        model = kind()
    any_ids = {"user": emb.Table(ids="any", missing=emb.init(3))}
    rows = emb.offload(model, "memory:", optimizer=emb.Adagrad(lr=0.1), tables=any_ids)
    inputs = tensors(ROWS)
    for _ in range(3):
        rows.zero_grad()
        model(**inputs)["score"].square().mean().backward()
        rows.step()
    return rows


def tensors(rows):
    return {name: torch.tensor(array) for name, array in SPEC.encode(rows).items()}


def answers(model, rows):
    with torch.no_grad():
        return model.eval()(**tensors(rows))["score"].numpy()


@pytest.mark.parametrize("kind", [Plain, Twice, Bags, Flattened, Constant, Shared])
def test_a_model_with_its_tables_outside_answers_as_it_does(kind, tmp_path):
    rows = trained(kind)
    paths = list(rows.tables)
    report = ps.export.save(
        rows, tmp_path / "saved", features=SPEC, reference_rows=ROWS, formats=FORMATS, outside=paths, shard_bytes=700
    )
    assert {table.path for table in open_artifact(report.path).manifest.outside} == set(paths) - {"user"} | (
        {"user"} if kind in (Plain, Twice, Constant) else set()
    )
    for format_ in FORMATS:
        model = open_model(open_artifact(report.path, trust=True), format_)
        for count in (1, 2, len(ASKED)):
            found = [
                model.predict_rows(ASKED[start : start + count]).values["score"]
                for start in range(0, len(ASKED), count)
            ]
            together = np.concatenate(found)
            assert np.allclose(together, answers(rows.model, ASKED), rtol=1e-5, atol=1e-5), (format_, count)
        model.close()


def test_the_graphs_have_nothing_of_the_size_of_a_table_nor_of_each_other(tmp_path):
    class Large(Twice):
        def __init__(self):
            super().__init__()
            self.wide = nn.Linear(WIDTH, 4096)

        def vectors(self, user, items, weights):
            first, *others = super().vectors(user, items, weights)
            return [first + self.wide(first).mean(dim=1, keepdim=True), *others]

    ps.export.save(
        trained(Large), tmp_path / "saved", features=SPEC, reference_rows=ROWS, formats=FORMATS, outside=["items"]
    )
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "saved").glob("*.*") if path.suffix != ".json"}
    assert sorted(sizes) == ["ids.onnx", "ids.pt2", "model.onnx", "model.pt2"]
    assert max(sizes["ids.onnx"], sizes["ids.pt2"]) < 4096 * WIDTH * 4 < min(sizes["model.onnx"], sizes["model.pt2"])


def test_a_table_inside_and_one_outside_are_both_held_to_their_ids(tmp_path):
    class Computed(Twice):
        def vectors(self, user, items, weights):
            return [self.user(user), self.user(user), self.items(items[:, 0] + user % 50)]

    rows = trained(Computed)
    report = ps.export.save(rows, tmp_path / "saved", features=SPEC, reference_rows=ROWS)
    manifest = open_artifact(report.path).manifest
    assert [(table.path, table.placed) for table in manifest.tables] == [("user", "outside"), ("items", "inlined")]
    asked = [ROWS[0], {"user": 49, "items": [59], "weights": 1}, ROWS[1]]
    found = open_model(open_artifact(report.path)).predict_rows(asked)
    assert found.kept == [0, 2]
    assert found.invalid[1].reason == "table 'items' has the ids from 0 to 59, but id 108 was requested"
    assert np.allclose(found.values["score"], answers(rows.model, [ROWS[0], ROWS[1]]), atol=1e-5)


def test_an_id_that_is_not_by_the_row_fails_the_whole_call(tmp_path):
    class Beyond(Flattened):
        def vectors(self, user, items, weights):
            return super().vectors(user, items + (user == 49)[:, None] * 100, weights)

    report = ps.export.save(trained(Beyond), tmp_path / "saved", features=SPEC, reference_rows=ROWS, outside=["flat"])
    model = open_model(open_artifact(report.path))
    with pytest.raises(ps.InvalidItem, match=r"'(flat|rows)' has the ids from 0 to 59, but id 10\d was requested"):
        model.predict_rows([ROWS[0], {"user": 49, "items": [3], "weights": 1}])


def test_ids_that_depend_on_rows_are_refused_with_both_layers(tmp_path):
    class Chained(Twice):
        def vectors(self, user, items, weights):
            first = self.user(user)
            return [first, first, self.items((first[:, 0] * 10).long() % ITEMS)]

    with pytest.raises(ExportRefused, match="the ids of layer 'items' depend on the rows of layer 'user'"):
        ps.export.save(trained(Chained), tmp_path / "saved", features=SPEC, reference_rows=ROWS)
    assert not (tmp_path / "saved").exists()


def test_a_table_that_is_for_training_alone_is_left_out(tmp_path):
    class Idle(Twice):
        def vectors(self, user, items, weights):
            return [self.items(items[:, 0])] * 3

    report = ps.export.save(trained(Idle), tmp_path / "saved", features=SPEC, reference_rows=ROWS, outside=["items"])
    assert [table.path for table in open_artifact(report.path).manifest.tables] == ["items"]
    assert not list(report.path.glob("tables/user"))


def test_a_model_that_looks_up_no_table_outside_is_saved_as_one_without(tmp_path):
    class Idle(Twice):
        def vectors(self, user, items, weights):
            first = self.user(user) if self.training else self.items(items[:, 0])
            return [first, self.items(items[:, 1]), self.items(items[:, 2])]

    rows = trained(Idle)
    with pytest.raises(ExportRefused, match="feature 'user' is Ids without a size"):  # nothing would check its ids
        ps.export.save(rows, tmp_path / "saved", features=SPEC, reference_rows=ROWS)
    sized = ps.Features({"user": f.Ids(size=2**62), "items": f.Ids(size=ITEMS, max_length=3), "weights": f.Numeric()})
    probes = [row for row in ROWS if row["user"] >= 0]
    report = ps.export.save(rows, tmp_path / "saved", features=sized, reference_rows=probes, formats=FORMATS)
    manifest = open_artifact(report.path).manifest
    assert (manifest.schema, manifest.tables, [graph.role for graph in manifest.graphs]) == (3, (), ["model"] * 2)


def test_features_that_are_called_as_the_inputs_with_rows_are_told_apart(tmp_path):
    spec = ps.Features({"rows_0": f.Ids(), "places_0_0": f.Numeric(), "ids_0_0": f.Numeric()})

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.user = nn.Embedding(9, WIDTH)

        def forward(self, rows_0, places_0_0, ids_0_0):
            return {"score": self.user(rows_0).sum(1) + places_0_0 * ids_0_0}

    probes = [{"rows_0": place * 3, "places_0_0": place, "ids_0_0": 1 / (place + 1)} for place in range(5)]
    rows = emb.offload(
        Named(), "memory:", optimizer=emb.SGD(lr=0.1), tables={"user": emb.Table(ids="any", missing=emb.zeros())}
    )
    report = ps.export.save(rows, tmp_path / "saved", features=spec, reference_rows=probes, formats=FORMATS)
    assert report.rows >= len(probes)


def test_a_disk_that_fills_while_the_rows_are_written_leaves_nothing(tmp_path, monkeypatch):
    rows = trained(Plain)

    def fill(folder, *_, **__):
        (folder / "tables").mkdir()
        (folder / "tables" / "begun").write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(offloaded_model, "write_shards", fill)
    with pytest.raises(OSError, match="No space left"):
        ps.export.save(rows, tmp_path / "saved", features=SPEC, reference_rows=ROWS)
    assert list(tmp_path.iterdir()) == []
    rows.zero_grad()
    rows.step()


# -- the proof --------------------------------------------------------------------------------------------------------


class Pair(Scored):
    """Two tables of one width and size."""

    def __init__(self):
        super().__init__(2)
        self.left, self.right = nn.Embedding(ITEMS, WIDTH), nn.Embedding(ITEMS, WIDTH)

    def vectors(self, user, items, weights):
        return [self.left(items[:, 0]), self.right(items[:, 1])]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    rows = trained(Pair, filled=True)
    every = [{"user": 1, "items": [place, place], "weights": 1} for place in range(ITEMS)]
    path = tmp_path_factory.mktemp("pair") / "saved"
    ps.export.save(rows, path, features=SPEC, reference_rows=every, outside=["left", "right"])
    return path


@pytest.fixture
def altered(pair, tmp_path):
    """``altered(change)``: a copy whose files were changed, with a manifest that says so."""

    def make(change):
        path = tmp_path / "altered"
        shutil.copytree(pair, path)
        change(path)
        listed = json.loads((path / "manifest.json").read_text())["files"]
        edit_manifest(path, lambda found: found["files"].update({name: entry_of(path / name) for name in listed}))
        return path

    return make


def entry_of(path: Path):
    from hashlib import sha256

    content = path.read_bytes()
    return {"sha256": sha256(content).hexdigest(), "bytes": len(content)}


def shard_of(path, table):
    return path / shard_path(table, 1, 1)


def test_the_proof_passes_as_it_was_saved(pair):
    assert prove(pair).rows == ITEMS


def test_rows_that_were_swapped_between_two_tables_fail_the_proof(altered):
    def swap(path):
        one, other = shard_of(path, "left"), shard_of(path, "right")
        size = WIDTH * 4 * ITEMS
        left, right = one.read_bytes(), other.read_bytes()
        one.write_bytes(left[:-size] + right[-size:])
        other.write_bytes(right[:-size] + left[-size:])

    with pytest.raises(ExportRefused, match=r"table 'left': the row of id 0 is .*, but was .* in training"):
        prove(altered(swap))


def test_rows_in_another_order_fail_the_proof(altered):
    def permute(path):
        content = shard_of(path, "right").read_bytes()
        size = WIDTH * 4
        shard_of(path, "right").write_bytes(
            content[: -3 * size] + content[-2 * size : -size] + content[-3 * size : -2 * size] + content[-size:]
        )

    with pytest.raises(ExportRefused, match=f"table 'right': the row of id {ITEMS - 3} is"):
        prove(altered(permute))


def test_shards_in_place_of_those_of_the_other_table_are_no_artifact(altered):
    def swap(path):
        one, other = shard_of(path, "left"), shard_of(path, "right")
        left, right = one.read_bytes(), other.read_bytes()
        one.write_bytes(right.ljust(len(left))[: len(left)])
        other.write_bytes(left.ljust(len(right))[: len(right)])

    with pytest.raises(ArtifactInvalid, match=r"is not shard 1 of table '(left|right)' as this artifact was saved"):
        prove(altered(swap))


def test_an_int32_on_the_way_of_an_id_fails_the_proof(tmp_path):
    class Narrowed(Scored):
        def vectors(self, user, items, weights):
            narrow = user if torch.compiler.is_exporting() is False else user.int().long()
            return [self.user(narrow)]

    with pytest.raises(ExportRefused, match=r"'user': 'ids_0_0' has the ids int64\[1\] \[-2147483643\] in the rows"):
        ps.export.save(trained(Narrowed), tmp_path / "saved", features=SPEC, reference_rows=ROWS)


# -- versions ---------------------------------------------------------------------------------------------------------


def test_an_id_that_no_probe_has_and_no_float_holds_fails_the_proof_where_another_is_looked_up(tmp_path):
    class Remainder(Plain):  # ONNX Runtime computes fmod of int64 in float64
        def vectors(self, user, items, weights):
            return [self.user(torch.fmod(user, 1000))]

    small = [{**row, "user": place} for place, row in enumerate(ROWS)]
    with pytest.raises(ExportRefused, match=r"the proof makes of yours, .*'ids_0_0' has the ids int64\[1\] \[808\]"):
        ps.export.save(trained(Remainder), tmp_path / "saved", features=SPEC, reference_rows=small)


class Numbered(nn.Module):
    """Answers with the row of a user, and with its own weight, which are both the version's number."""

    def __init__(self):
        super().__init__()
        self.user, self.weight = nn.Embedding(9, WIDTH), nn.Parameter(torch.zeros(1))

    def forward(self, user, items, items_weight, weights):
        return {"row": self.user(user), "weight": self.weight + torch.zeros_like(user, dtype=torch.float32)}


def save_numbered(number: int, folder: Path) -> None:
    """Have a training run save and publish a version whose rows, rule and weight are its number."""
    model = Numbered()
    with torch.no_grad():
        model.user.weight.fill_(number)
        model.weight.fill_(number)
    table = emb.Table(ids="any", missing=emb.constant([number] * WIDTH))
    rows = emb.offload(model, "memory:", optimizer=emb.SGD(lr=0.1), tables={"user": table})
    run = ps.training.Run(folder / f"run-{number}", publish_to=folder / "models")
    run.plan(train=[None])
    saved = {"model": rows, "features": SPEC, "reference_rows": ROWS}
    assert run.work(train=lambda _: None, save=lambda: saved) == number


def test_a_server_that_is_started_after_each_publish_and_rollback_mixes_no_versions(tmp_path):
    def served_numbers():
        with serving(tmp_path, "models", services=()) as server:
            found = set()
            for user in (0, 8, 9, -1, 2**40):  # the last three have the rule's row
                answer = server.http.post("/predict", json={"user": user, "items": [], "weights": 0}).json()
                found |= {*answer["row"], answer["weight"]}
            return server.health()["services"]["model"]["model_version"], found

    for number in (1, 2, 3):
        save_numbered(number, tmp_path)
        assert served_numbers() == (number, {float(number)})
    for number in (2, 1):
        ps.export.rollback(tmp_path / "models")
        assert served_numbers() == (number, {float(number)})
