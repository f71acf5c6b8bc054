"""Save a model whose embedding rows lie in a training store: the artifact answers as the model does."""

import json
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn  # noqa: E402

import penstock as ps  # noqa: E402
from penstock import embeddings as emb  # noqa: E402
from penstock import features as f  # noqa: E402
from penstock.artifact.opened_artifact import open_artifact  # noqa: E402
from penstock.artifact.served_model import open_model  # noqa: E402
from penstock.embeddings.offloading import Offloaded  # noqa: E402
from penstock.errors import ConfigError, ExportRefused  # noqa: E402
from penstock.export.torch_model import TorchExporter  # noqa: E402

ROWS = [{"user": place % 20, "words": [f"w{place}", f"w{place + 1}"]} for place in range(8)]
FEATURES = ps.Features({"user": f.Ids(size=20), "words": f.Hashed(buckets=30, max_length=3)}).fit(ROWS)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(20, 4)
        self.words = nn.EmbeddingBag(30, 4, mode="sum")
        self.out = nn.Linear(4, 1)

    def forward(self, user, words, words_weight):
        bag = self.words(words, per_sample_weights=words_weight)
        return {"score": self.out(self.user(user) * bag * 100).squeeze(1)}


def trained(store, *, steps=3, **tables):
    """The rows of a model that was trained on a part of the ids."""
    torch.manual_seed(0)
    with emb.placeholders():
        model = Ranker()
    rows = emb.offload(model, store, optimizer=emb.Adagrad(lr=0.1), tables=tables)
    inputs = {name: torch.tensor(array) for name, array in FEATURES.encode(ROWS).items()}
    for _ in range(steps):
        rows.zero_grad()
        model(**inputs)["score"].square().mean().backward()
        rows.step()
    return rows


def are_offloaded(rows):
    return isinstance(rows.model.user, Offloaded) and isinstance(rows.model.words, Offloaded)


@pytest.mark.parametrize("store", ["memory:", "shared:rows"])
def test_the_artifact_answers_as_the_model_also_for_ids_that_nobody_trained(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = trained(store)
    assert rows.store.count("user") == len(ROWS)
    report = ps.export.save(rows, "artifact", features=FEATURES, reference_rows=ROWS)
    assert report.rows >= len(ROWS)
    assert are_offloaded(rows)
    asked = [{"user": user, "words": [f"w{user}"]} for user in range(20)]
    inputs = FEATURES.encode(asked)
    graph = open_model(open_artifact(tmp_path / "artifact"), "onnx")
    with torch.no_grad():
        expected = rows.model(**{name: torch.tensor(array) for name, array in inputs.items()})["score"].numpy()
    assert np.allclose(graph.run(inputs)[0], expected, rtol=1e-5, atol=1e-5)
    assert len(set(expected.tolist())) == len(asked)
    manifest = json.loads((tmp_path / "artifact" / "manifest.json").read_text())
    assert manifest["tables"] == []
    rows.step()


def test_the_layers_are_native_while_the_graph_is_written_and_offloaded_again_after_an_error(tmp_path, monkeypatch):
    rows = trained("memory:")
    found = []

    def fail(exporter, *_):
        found.append((are_offloaded(rows), exporter._model.user.weight.shape))
        raise OSError("the disk is full")

    monkeypatch.setattr(TorchExporter, "write", fail)
    with pytest.raises(OSError, match="full"):
        ps.export.save(rows, tmp_path / "artifact", features=FEATURES, reference_rows=ROWS)
    assert found == [(False, (20, 4))]
    assert are_offloaded(rows)
    assert not (tmp_path / "artifact").exists()


@pytest.mark.parametrize(
    ("tables", "options", "outside"),
    [
        ({}, {"inline_limit": 480}, []),
        ({}, {"inline_limit": 479}, ["words"]),
        ({"user": emb.Table(ids="any")}, {}, ["user"]),
        ({}, {"outside": ["user"]}, ["user"]),
    ],
    ids=["none", "large", "any ids", "named"],
)
def test_a_table_stays_outside_where_it_is_large_takes_any_id_or_is_named(tables, options, outside, tmp_path):
    rows = trained("memory:", **tables)
    ps.export.save(rows, tmp_path / "artifact", features=FEATURES, reference_rows=ROWS, **options)
    manifest = open_artifact(tmp_path / "artifact").manifest
    assert ([table.name for table in manifest.outside], manifest.schema) == (outside, 3)
    assert are_offloaded(rows)


def test_a_path_of_no_table_is_refused_with_those_that_there_are(tmp_path):
    with pytest.raises(ConfigError, match=r"outside has 'item', which is not the path of a table; tables: 'user', 'wo"):
        ps.export.save(
            trained("memory:"), tmp_path / "artifact", features=FEATURES, reference_rows=ROWS, outside=["item"]
        )


def test_ids_without_a_size_are_refused_by_name(tmp_path):
    features = ps.Features({"user": f.Ids(), "words": f.Hashed(buckets=30, max_length=3)}).fit(ROWS)
    with pytest.raises(ExportRefused, match=r"feature 'user' is Ids without a size.*Ids\(size="):
        ps.export.save(trained("memory:"), tmp_path / "artifact", features=features, reference_rows=ROWS)


def test_the_model_alone_and_rows_that_were_restored_are_refused_with_what_to_give(tmp_path):
    rows = trained("memory:")

    def save(model):
        ps.export.save(model, tmp_path / "artifact", features=FEATURES, reference_rows=ROWS)

    with pytest.raises(ConfigError, match=r"user has its rows in a training store: pass the object .*offload returned"):
        save(rows.model)
    emb.restore(rows)
    with pytest.raises(ConfigError, match="was restored and has its rows again: pass the model itself to save"):
        save(rows)


def test_a_model_whose_other_layers_are_sharded_is_refused(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rows = trained("memory:")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        fully_shard(rows.model.out, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(ConfigError, match=r"out is sharded by FSDP.*get_model_state_dict"):
            ps.export.save(rows, tmp_path / "artifact", features=FEATURES, reference_rows=ROWS)
    finally:
        torch.distributed.destroy_process_group()
    assert are_offloaded(rows)


LARGE = """
import re, sys
import torch
from torch import nn
import penstock as ps
from penstock import embeddings as emb, features as f

def megabytes(name):
    with open("/proc/self/status") as status:
        return int(re.search(name + r":\\s+(\\d+) kB", status.read())[1]) / 1024

class Wide(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.table, self.out = nn.Embedding(size, 64), nn.Linear(64, 1)

    def forward(self, user):
        return {"score": self.out(self.table(user)).squeeze(1)}

def save(size, path):
    rows = [{"user": place} for place in range(8)]
    features = ps.Features({"user": f.Ids(size=size)}).fit(rows)
    with emb.placeholders():
        model = Wide(size)
    offloaded = emb.offload(model, sys.argv[1], optimizer=emb.SGD(lr=0.1), tables={"table": emb.Table(name=path)})
    ps.export.save(offloaded, path, features=features, reference_rows=rows)

save(10, "small")  # imports all that there is to import
before = megabytes("VmRSS")
save(400_000, "large")
print(megabytes("VmHWM") - before, 400_000 * 64 * 4 / 2**20)
"""


@pytest.mark.night
@pytest.mark.parametrize("store", ["memory:", "shared:rows"])
def test_a_save_takes_at_most_five_times_the_bytes_of_its_tables(store, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LARGE, store], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr
    taken, table = map(float, done.stdout.split()[-2:])
    assert taken <= 5 * table


OUTSIDE = LARGE.replace(
    "ps.export.save(offloaded, path, features=features, reference_rows=rows)",
    """for start in range(0, size, 10_000):
        ids = np.arange(start, min(size, start + 10_000))
        offloaded.store.load(path, ids, np.ones((len(ids), 64), np.float32))
    global before
    before = megabytes("VmRSS")
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")  # the peak begins anew
    ps.export.save(offloaded, path, features=features, reference_rows=rows, outside=["table"], shard_bytes=2**24)""",
).replace("import torch", "import numpy as np\nimport torch", 1)


@pytest.mark.night
def test_a_save_outside_of_the_graph_takes_two_shards_and_24_bytes_a_row(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", OUTSIDE, "memory:"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    taken, _ = map(float, done.stdout.split()[-2:])
    assert taken <= (2 * 2**24 + 24 * 400_000) / 2**20
