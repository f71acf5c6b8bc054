"""Many processes that train one model over one store, and whoever saves or restores it."""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import penstock as ps  # noqa: E402
from penstock import embeddings as emb  # noqa: E402
from penstock import features as f  # noqa: E402
from penstock.artifact.opened_artifact import open_artifact  # noqa: E402
from penstock.artifact.served_model import open_model  # noqa: E402
from penstock.embeddings.memory_store import MemoryTrainingStore  # noqa: E402
from penstock.errors import ConfigError, EmbeddingError, TableMismatch  # noqa: E402

SGD = emb.SGD(lr=0.5)


class Ranker(nn.Module):
    def __init__(self, shift=0.0):
        super().__init__()
        self.user = nn.Embedding(20, 4)
        self.out = nn.Linear(4, 300)
        for place, parameter in enumerate(self.parameters()):
            numbers = torch.arange(float(parameter.numel())) / 8 + shift + 100 * place
            parameter.data.copy_(numbers.reshape(parameter.shape))

    def forward(self, user):
        return {"score": self.out(self.user(user)).sum(1)}


def offloaded(store, *, shift=0.0, dense="shared"):
    return emb.offload(Ranker(shift), store, optimizer=SGD, dense=dense)


def values(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def train(rows, *, steps=3, own=None):
    own = own or torch.optim.SGD(rows.model.parameters(), lr=0.25)
    for step in range(steps):
        own.zero_grad()
        rows.zero_grad()
        rows.model(torch.tensor([step, 7]))["score"].sum().mul(1e-4).backward()
        own.step()
        rows.step()


TRAINER = """
import sys
import torch
from torch import nn
from penstock import embeddings as emb

rank, steps = int(sys.argv[1]), int(sys.argv[2])

class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.out = nn.Embedding(20, 4), nn.Linear(4, 300)
        self.big = nn.Embedding(200_000, 2, _weight=torch.arange(400_000.0).reshape(-1, 2) + rank * 1_000_000)

model = Ranker()
print("ready", flush=True)
sys.stdin.readline()
rows = emb.offload(model, "shared:rows", optimizer=emb.SGD(lr=0.5), dense="shared")
filled = torch.from_numpy(rows.store.fetch("big", torch.arange(200_000).numpy()).rows)
print([bool((filled == torch.arange(400_000.0).reshape(-1, 2) + of * 1_000_000).all()) for of in range(3)], flush=True)
own = torch.optim.SGD(model.parameters(), lr=0.25)
for _ in range(steps):
    own.zero_grad()
    rows.zero_grad()
    (sum(parameter.sum() for parameter in model.parameters()) + model.user(torch.tensor([3, 3, 5])).sum()).backward()
    own.step()
    rows.step()
"""


def test_three_processes_add_up_what_each_does_also_for_one_that_came_first_and_did_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = offloaded("shared:rows")
    before, table = values(first.model), first.store.fetch("user", np.arange(20)).rows
    trainers = [
        subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(rank), str(10 + rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    for trainer in trainers:
        assert trainer.stdout.readline() == "ready\n"
    told = [trainer.communicate("go\n", timeout=200)[0] for trainer in trainers]
    assert [trainer.returncode for trainer in trainers] == [0, 0, 0]
    assert told[0] in {"[True, False, False]\n", "[False, True, False]\n", "[False, False, True]\n"}
    assert told == [told[0]] * 3, "one process fills the big table, and the others wait for it"
    steps = 10 + 11 + 12
    assert all(torch.equal(first.model.state_dict()[name], value) for name, value in before.items())
    first.refresh()
    for name, value in before.items():
        assert torch.equal(first.model.state_dict()[name], value - 0.25 * steps), name
    table[3] -= 0.5 * 2 * steps
    table[5] -= 0.5 * steps
    assert np.array_equal(first.store.fetch("user", np.arange(20)).rows, table)


AVERAGING = """
import sys
import torch
from torch import nn
from penstock import embeddings as emb

rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
torch.manual_seed(0)
native = nn.Sequential(nn.Embedding(6, 3), nn.Linear(3, 2))
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(6, 3), nn.Linear(3, 2))
rows = emb.offload(model, "shared:rows", optimizer=emb.SGD(lr=0.1))
own = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (native, model)]
parallel = nn.parallel.DistributedDataParallel(model)
batches = torch.arange(24).reshape(3, 2, 4) % 6
for step in range(3):
    native(batches[step]).square().mean().backward()
    torch.distributed.barrier()  # nobody reads rows that another has changed in this step
    loss = parallel(batches[step, rank]).square().mean()
    torch.distributed.barrier()
    loss.backward()
    rows.step(scale=0.5)
    for each in own:
        each.step()
        each.zero_grad()
    rows.zero_grad()
torch.distributed.barrier()
emb.restore(rows)
for name, value in native.state_dict().items():
    torch.testing.assert_close(model.state_dict()[name], value)
torch.distributed.destroy_process_group()
"""


def test_two_processes_that_average_train_the_rows_of_the_native_model(tmp_path):
    ranks = [
        subprocess.Popen([sys.executable, "-c", AVERAGING, str(rank), str(tmp_path / "group")], cwd=tmp_path)
        for rank in range(2)
    ]
    assert [rank.wait(timeout=200) for rank in ranks] == [0, 0]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda model: torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9),
        lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    ],
    ids=["momentum", "Adam"],
)
def test_one_process_trains_shared_parameters_as_its_own_whatever_its_optimizer_is(optimizer):
    alone, shared = (offloaded("memory:", dense=dense) for dense in ("own", "shared"))
    for rows in (alone, shared):
        train(rows, steps=20, own=optimizer(rows.model))
    for name, value in values(alone.model).items():
        torch.testing.assert_close(shared.model.state_dict()[name], value, rtol=1e-6, atol=1e-6)
    assert not torch.equal(shared.model.out.weight, Ranker().out.weight)


def test_parameters_of_ones_own_stay_as_they_are():
    store = MemoryTrainingStore()
    one, other = (offloaded(store, shift=shift, dense="own") for shift in (0.0, 3.0))
    train(one)
    before = values(other.model)
    other.refresh()
    assert all(torch.equal(value, before[name]) for name, value in values(other.model).items())
    assert set(store.tables()) == {"user"}


def test_a_saver_that_trained_nothing_saves_what_the_others_did(tmp_path):
    pytest.importorskip("onnxscript")
    store = MemoryTrainingStore()
    saver, trainer = (offloaded(store, shift=shift) for shift in (0.0, 3.0))
    train(trainer)
    raw = [{"user": user} for user in range(20)]
    features = ps.Features({"user": f.Ids(size=20)}).fit(raw)
    ps.export.save(saver, tmp_path / "artifact", features=features, reference_rows=raw)
    graph = open_model(open_artifact(tmp_path / "artifact"), "onnx")
    with torch.no_grad():
        expected = trainer.model(torch.arange(20))["score"].numpy()
    assert np.allclose(graph.run({"user": np.arange(20)})[0], expected, rtol=1e-5)


def test_a_model_is_restored_with_what_the_others_did():
    store = MemoryTrainingStore()
    idle, trainer = (offloaded(store, shift=shift) for shift in (0.0, 3.0))
    train(trainer)
    native = emb.restore(idle)
    assert all(torch.equal(native.state_dict()[name], value) for name, value in values(trainer.model).items())
    with pytest.raises(EmbeddingError, match="was restored"):
        idle.refresh()


def test_a_store_that_was_saved_has_the_shared_parameters_too(tmp_path):
    rows = offloaded("memory:")
    train(rows)
    rows.store.save(tmp_path / "saved")
    again = offloaded(f"shared:{tmp_path}/saved", shift=3.0)
    assert all(torch.equal(again.model.state_dict()[name], value) for name, value in values(rows.model).items())


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(20, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("places", torch.arange(3), persistent=False)

    def forward(self, user):
        if self.training:
            self.calls += 1
        return self.user(user)


def test_a_buffer_that_a_step_changes_is_refused_by_name_and_nothing_is_applied():
    rows = emb.offload(Counting(), "memory:", optimizer=SGD, dense="shared")
    before = rows.store.fetch("user", np.arange(20)).rows
    rows.model.eval()
    rows.model(torch.tensor([1])).sum().backward()
    rows.model.train()
    rows.model(torch.tensor([2])).sum().backward()
    with pytest.raises(ConfigError, match=r"a step changes the buffer 'calls'"):
        rows.step()
    assert np.array_equal(rows.store.fetch("user", np.arange(20)).rows, before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: setattr(model, "out", nn.Linear(4, 300)), r"parameter 'out\.weight' is new or of another dtype"),
        (lambda model: model.out.bfloat16(), r"parameter 'out\.weight' is new or of another dtype"),
        (lambda model: model.register_parameter("gain", nn.Parameter(torch.ones(1))), r"parameter 'gain' is new"),
    ],
    ids=["replaced", "converted", "added"],
)
def test_a_parameter_that_is_not_the_one_that_was_shared_is_refused_and_nothing_is_applied(change, words):
    rows = offloaded("memory:")
    before = rows.store.fetch("user", np.arange(20)).rows
    rows.model(torch.tensor([1, 2]))["score"].sum().backward()
    change(rows.model)
    with pytest.raises(ConfigError, match=words):
        rows.step()
    assert np.array_equal(rows.store.fetch("user", np.arange(20)).rows, before)


def test_a_parameter_that_is_not_finite_is_refused_by_name_and_nothing_is_applied():
    rows = offloaded("memory:")
    before = rows.store.fetch("user", np.arange(20)).rows
    rows.model(torch.tensor([2]))["score"].sum().backward()
    rows.model.out.bias.data[4] = float("inf")
    with pytest.raises(FloatingPointError, match=r"parameter 'out.bias' is not finite"):
        rows.step()
    assert np.array_equal(rows.store.fetch("user", np.arange(20)).rows, before)


@pytest.mark.parametrize(
    ("dense", "more", "words"),
    [
        ("all", nn.Linear(4, 2), r"dense must be 'own' or 'shared', got 'all'"),
        ("shared", nn.BatchNorm1d(4), r"a step changes the buffer '1.running_mean'"),
        ("shared", nn.InstanceNorm1d(4, track_running_stats=True), r"a step changes the buffer '1.running_mean'"),
        ("shared", nn.Linear(4, 2).double(), r"parameter '1.weight' is not float32"),
        ("shared", nn.Linear(4, 2, device="meta"), r"parameter '1.weight' is not float32"),
        ("shared", nn.LazyLinear(2), r"parameter '1.weight' is not float32"),
        (
            "own",
            nn.ModuleDict({"a": nn.Embedding(3, 2)}),
            r"the table name '\(parameters\)' is reserved for the other parameters",
        ),
    ],
)
def test_parameters_that_cannot_be_shared_are_refused_by_name(dense, more, words):
    store = MemoryTrainingStore()
    tables = {"1.a": emb.Table(name="(parameters)")} if isinstance(more, nn.ModuleDict) else None
    with pytest.raises(ConfigError, match=words):
        emb.offload(nn.Sequential(nn.Embedding(3, 4), more), store, optimizer=SGD, tables=tables, dense=dense)
    assert store.tables() == {}


def test_parameters_of_another_model_are_refused_and_the_model_is_not_changed():
    store = MemoryTrainingStore()
    offloaded(store)
    model = nn.ModuleDict({"user": nn.Embedding(20, 4), "out": nn.Linear(4, 7)})
    before = values(model)
    with pytest.raises(TableMismatch, match=r"out.weight \[300, 4\]; this one has out.weight \[7, 4\]"):
        emb.offload(model, store, optimizer=SGD, dense="shared")
    assert type(model["user"]) is nn.Embedding
    assert all(torch.equal(value, before[name]) for name, value in values(model).items())
