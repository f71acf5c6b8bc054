"""Embedding layers of PyTorch whose rows lie in a training store, each held to the native layer."""

import contextlib
import copy
import gc
import logging
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from penstock import embeddings as emb  # noqa: E402
from penstock.embeddings import offloading  # noqa: E402
from penstock.embeddings.memory_store import MemoryTrainingStore  # noqa: E402
from penstock.errors import ConfigError, EmbeddingError, TableMismatch  # noqa: E402

SGD = emb.SGD(lr=0.1)


def values(*shape, shift=0.0):
    """Numbers of which no two are equal, so a row that is swapped with another is seen."""
    return torch.sin(torch.arange(float(np.prod(shape))) + shift).reshape(shape)


def embedding(size=6, width=3, *, shift=0.0, kind=nn.Embedding, **options):
    layer = kind(size, width, **options)
    layer.weight.data.copy_(values(size, width, shift=shift))
    return layer


class Towers(nn.Module):
    """Tables of equal width: a list of three, a dict, a nested one, and one that two towers share."""

    def __init__(self):
        super().__init__()
        self.shared = embedding(shift=0.1)
        self.left, self.right = nn.Sequential(self.shared, nn.Tanh()), nn.Sequential(self.shared, nn.Linear(3, 3))
        self.list = nn.ModuleList(embedding(shift=0.2 + place) for place in range(3))
        self.dict = nn.ModuleDict({"bag": embedding(shift=7.0, kind=nn.EmbeddingBag), "norm": nn.LayerNorm(3)})

    def forward(self, ids):
        return torch.stack(
            [self.left(ids), self.right(ids), *(layer(ids) for layer in self.list), self.dict["bag"](ids[:, None])]
        )


PATHS = ["shared", "list.0", "list.1", "list.2", "dict.bag"]


def loss_of(answer):
    return (answer.square() * values(*answer.shape, shift=0.5)).sum()


def table_of(rows, path):
    """All rows of a dense table."""
    spec = rows.tables[path]
    return torch.from_numpy(rows.store.fetch(spec.name, np.arange(spec.size)).rows)


def one_step(model, rows, *inputs, own=None):
    rows.zero_grad()
    loss_of(model(*inputs)).backward()
    rows.step()
    if own is not None:
        own.step()
        own.zero_grad()


# -- swapped in place -------------------------------------------------------------------------------------------------


def test_every_embedding_layer_is_swapped_in_place_and_back():
    model = Towers()
    native, before, options = copy.deepcopy(model), dict(model.named_modules()), copy.deepcopy(model.state_dict())
    rows = emb.offload(model, "memory:", optimizer=SGD)
    assert rows.model is model
    assert list(rows.tables) == PATHS
    assert rows.tables["shared"] == rows.store.tables()["shared"]
    assert all(found is before[path] for path, found in model.named_modules())
    assert [path for path, layer in model.named_modules() if isinstance(layer, offloading.Offloaded)] == PATHS
    assert set(model.state_dict()) == set(options) - {
        *(f"{path}.weight" for path in PATHS),
        "left.0.weight",
        "right.0.weight",
    }
    ids = torch.tensor([5, 0, 3, 3])
    assert torch.equal(model(ids), native(ids))
    assert emb.restore(rows) is model
    assert {path: type(layer) for path, layer in model.named_modules()} == {
        path: type(layer) for path, layer in native.named_modules()
    }
    assert all(torch.equal(there, options[name]) for name, there in model.state_dict().items())
    assert list(model.state_dict()) == list(options)


def test_a_model_with_many_tables_trains_as_the_native_one():
    native, model = Towers(), Towers()
    native.load_state_dict(model.state_dict())
    theirs = torch.optim.SGD(native.parameters(), lr=0.01)
    rows = emb.offload(model, "memory:", optimizer=emb.SGD(lr=0.01))
    own = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(5):
        ids = torch.tensor([step, 0, 3, 5])
        theirs.zero_grad()
        loss_of(native(ids)).backward()
        theirs.step()
        one_step(model, rows, ids, own=own)
    emb.restore(rows)
    for name, expected in native.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], expected)


def test_tables_says_what_holds_for_a_layer_or_leaves_it_native():
    model = Towers()
    rows = emb.offload(
        model,
        "memory:",
        optimizer=SGD,
        tables={"list.1": None, "shared": emb.Table(ids="any", missing=emb.zeros(), optimizer=emb.SGD(2.0), name="x")},
    )
    assert type(model.list[1]) is nn.Embedding
    assert set(rows.tables) == set(PATHS) - {"list.1"}
    assert rows.tables["shared"] == emb.TableSpec("x", 3, ids="any", missing=emb.zeros(), optimizer=emb.SGD(2.0))
    assert set(rows.store.tables()) == {"x", "list.0", "list.2", "dict.bag"}
    assert rows.tables["list.0"] == emb.TableSpec("list.0", 3, size=6, missing=emb.init(), optimizer=SGD)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (
            {"left.1": None},
            "'left.1', which is not an embedding layer of the model; layers: 'shared', 'lis",
        ),
        ({"shared": emb.SGD(1.0)}, "takes a penstock.embeddings.Table for 'shared'"),
        ({"shared": emb.Table(name="list.0")}, "two layers have the table 'list.0'"),
        ({"shared": emb.Table(ids="some")}, "table 'shared': ids must be 'dense' or 'any', got 'some'"),
        (dict.fromkeys(PATHS), "no embedding layer to offload"),
        (["shared"], r"tables must be a dict of paths and Tables, got \['shared'\]"),
        ({"shared": emb.Table(missing=0.0)}, "table 'shared': missing must be zeros"),
        (
            {"shared": emb.Table(optimizer=torch.optim.SGD)},
            "table 'shared': optimizer must be SGD, Adagrad or SparseAdam",
        ),
    ],
)
def test_tables_that_cannot_be_are_refused_and_nothing_is_changed(tables, words):
    model, store = Towers(), MemoryTrainingStore()
    with pytest.raises(ConfigError, match=words):
        emb.offload(model, store, optimizer=SGD, tables=tables)
    assert type(model.shared) is nn.Embedding
    assert store.tables() == {}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: emb.offload("x", "memory:", optimizer=SGD),
            "offload takes a torch.nn.Module or a keras.Model, got 'x'",
        ),
        (lambda: emb.offload(Towers(), 3, optimizer=SGD), "store must be a training store or the URL of one, got 3"),
        (lambda: emb.offload(Towers(), "memory:", optimizer=0.1), "table 'shared': optimizer must be SGD, Adagrad or"),
        (lambda: emb.restore(Towers()), "restore takes the return value of offload"),
    ],
)
def test_arguments_of_another_type_are_refused(call, words):
    with pytest.raises(ConfigError, match=words):
        call()


def test_a_model_that_is_offloaded_already_has_no_layer_left_for_it():
    model = Towers()
    emb.offload(model, "memory:", optimizer=SGD)
    with pytest.raises(ConfigError, match="no embedding layer to offload; its embedding layers are offloaded already"):
        emb.offload(model, "memory:", optimizer=SGD)


def test_dense_ids_are_those_of_the_layer_and_any_ids_are_all():
    model = nn.ModuleDict({"dense": embedding(), "any": embedding()})
    rows = emb.offload(model, "memory:", optimizer=SGD, tables={"any": emb.Table(ids="any")})
    for wrong in (-1, 6):
        with pytest.raises(IndexError, match=f"table 'dense': id {wrong} is not from 0 to 5"):
            model["dense"](torch.tensor([0, wrong]))
    ids = torch.tensor([-(2**63), -1, 5, 6, 2**63 - 1])
    expected = emb.init().rows(ids.numpy(), 3, "any")
    expected[2] = values(6, 3)[5]
    assert np.array_equal(model["any"](ids).detach().numpy(), expected)
    one_step(model["any"], rows, ids)
    assert rows.store.count("any") == 6 + 4
    with pytest.raises(TypeError, match=r"layer 'dense': ids must be int32 or int64, got torch.float32"):
        model["dense"](torch.tensor([1.0]))


# -- rows that the layer had ------------------------------------------------------------------------------------------


def test_rows_of_the_layer_are_moved_once_and_then_those_of_the_store_win(caplog):
    store = MemoryTrainingStore()
    emb.offload(embedding(shift=1.0), store, optimizer=SGD)
    assert torch.equal(torch.from_numpy(store.fetch("Embedding", np.arange(6)).rows), values(6, 3, shift=1.0))
    with caplog.at_level(logging.INFO, "penstock.embeddings"):
        rows = emb.offload(embedding(shift=2.0), store, optimizer=emb.SGD(lr=7.0))
    assert [record.message for record in caplog.records] == [
        "table 'Embedding' exists already: using its rows instead of those of the layer"
    ]
    assert torch.equal(rows.model(torch.tensor([3])), values(6, 3, shift=1.0)[[3]])
    with pytest.raises(TableMismatch, match="another size"):
        emb.offload(embedding(size=7), store, optimizer=SGD)


class Held(MemoryTrainingStore):
    """Waits in the middle of a fill, and may fail there."""

    def __init__(self, *, fails=False):
        super().__init__()
        self.loading, self.go_on = threading.Event(), threading.Event()
        self.fails = fails

    def load(self, table, ids, rows):
        self.loading.set()
        assert self.go_on.wait(60)
        if self.fails:
            self.fails = False
            raise OSError("the disk is full")
        super().load(table, ids, rows)


def test_one_thread_fills_a_table_and_another_waits_for_it():
    store = Held()
    answers = {}

    def offload(shift):
        model = emb.offload(embedding(shift=shift), store, optimizer=SGD).model
        answers[shift] = model(torch.arange(6)).detach()

    first = threading.Thread(target=offload, args=(1.0,))
    first.start()
    assert store.loading.wait(60)
    second = threading.Thread(target=offload, args=(2.0,))
    second.start()
    assert answers == {}
    store.go_on.set()
    first.join()
    second.join()
    assert torch.equal(answers[1.0], values(6, 3, shift=1.0))
    assert torch.equal(answers[2.0], answers[1.0])


def test_a_fill_that_failed_is_begun_anew_and_the_model_was_not_changed():
    store, layer = Held(fails=True), embedding(shift=1.0)
    store.go_on.set()
    with pytest.raises(OSError, match="full"):
        emb.offload(layer, store, optimizer=SGD)
    assert type(layer) is nn.Embedding
    emb.offload(layer, store, optimizer=SGD)
    assert store.count("Embedding") == 6


# -- kept: as the native layer does it --------------------------------------------------------------------------------

FLAT = torch.tensor([2, 1, 4, 4, 0, 5, 2, 1])
PAIRS = FLAT.reshape(4, 2)
OFFSETS = torch.tensor([0, 3, 3, 6])
ENDS = torch.tensor([0, 3, 3, 8])
WEIGHTS = values(8, shift=3.0)
KEPT = {
    "padding": (lambda: embedding(padding_idx=2), [(FLAT,), (PAIRS,)]),
    "padding from behind": (lambda: embedding(padding_idx=-2), [(FLAT,)]),
    "int32": (embedding, [(PAIRS.int(),)]),
    "no ids": (embedding, [(FLAT[:0],), (FLAT,)]),
    "frozen": (lambda: embedding().requires_grad_(False), [(FLAT,)]),
    **{
        f"{mode}, {case}": (
            lambda mode=mode, options=options: embedding(kind=nn.EmbeddingBag, mode=mode, **options),
            inputs,
        )
        for mode in ("sum", "mean", "max")
        for case, options, inputs in (
            ("rows", {}, [(PAIRS,), (PAIRS.int(),)]),
            ("offsets", {}, [(FLAT, OFFSETS), (FLAT[:0], OFFSETS[:1]), (FLAT[:0], OFFSETS[:2] * 0)]),
            ("last offset", {"include_last_offset": True}, [(FLAT, ENDS)]),
            ("padding", {"padding_idx": 2}, [(PAIRS,), (FLAT, OFFSETS), (FLAT[1:6], OFFSETS[:2])]),
        )
    },
    "weights": (
        lambda: embedding(kind=nn.EmbeddingBag, mode="sum", padding_idx=1),
        [(FLAT, OFFSETS, WEIGHTS), (PAIRS, None, WEIGHTS.reshape(4, 2))],
    ),
    "frozen bag": (lambda: embedding(kind=nn.EmbeddingBag).requires_grad_(False), [(PAIRS,)]),
}


@pytest.mark.parametrize("case", KEPT)
def test_a_layer_does_what_the_native_one_does(case):
    make, batches = KEPT[case]
    native, model = make(), make()
    after = nn.Linear(3, 3)
    rows = emb.offload(model, "memory:", optimizer=SGD)
    path = next(iter(rows.tables))
    theirs = torch.optim.SGD(native.parameters(), lr=0.1)
    for inputs in batches * 2:
        expected, got = native(*inputs), model(*inputs)
        torch.testing.assert_close(got, expected)
        theirs.zero_grad()
        rows.zero_grad()
        for answer in (expected, got):
            loss_of(after(answer)).backward()
        theirs.step()
        rows.step()
        torch.testing.assert_close(table_of(rows, path), native.weight.data)
    assert all((table.grad is None) == case.startswith("frozen") for table in rows.parameters())


def test_gradients_of_sample_weights_are_the_native_ones():
    native, model = (embedding(kind=nn.EmbeddingBag, mode="sum") for _ in range(2))
    emb.offload(model, "memory:", optimizer=SGD)
    theirs, ours = (WEIGHTS.clone().requires_grad_() for _ in range(2))
    loss_of(native(FLAT, OFFSETS, theirs)).backward()
    loss_of(model(FLAT, OFFSETS, ours)).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (emb.SGD(lr=0.05), lambda rows: torch.optim.SGD(rows, lr=0.05)),
        (
            emb.Adagrad(lr=0.05, lr_decay=0.01, initial_accumulator_value=0.1),
            lambda rows: torch.optim.Adagrad(rows, lr=0.05, lr_decay=0.01, initial_accumulator_value=0.1),
        ),
        (emb.SparseAdam(lr=0.01), lambda rows: torch.optim.SparseAdam(rows, lr=0.01)),
    ],
    ids=["SGD", "Adagrad", "SparseAdam"],
)
def test_a_hundred_steps_are_those_of_a_sparse_layer_with_the_optimizer_of_torch(ours, theirs):
    random = np.random.default_rng(3)
    native = nn.Sequential(embedding(50, 4, sparse=True), nn.Linear(4, 2))
    model = copy.deepcopy(native)
    rows = emb.offload(model, "memory:", optimizer=ours)
    sparse = theirs(list(native[0].parameters()))
    dense = [torch.optim.SGD(module[1].parameters(), lr=0.01) for module in (native, model)]
    for _ in range(100):
        ids = torch.from_numpy(random.integers(0, 50, 32))
        for each in (sparse, rows, *dense):
            each.zero_grad()
        losses = [module(ids).square().mean() for module in (native, model)]
        for loss in losses:
            loss.backward()
        for each in (sparse, rows, *dense):
            each.step()
        torch.testing.assert_close(losses[1], losses[0], rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(table_of(rows, "0"), native[0].weight.data, rtol=2e-6, atol=2e-6)


# -- the optimizer of the rows ----------------------------------------------------------------------------------------


def test_rows_are_an_optimizer_with_a_group_a_table_whose_state_is_the_groups_alone():
    rows = emb.offload(Towers(), "memory:", optimizer=SGD)
    assert isinstance(rows, torch.optim.Optimizer)
    assert [(group["table"], group["lr"]) for group in rows.param_groups] == [(path, 0.1) for path in PATHS]
    one_step(rows.model, rows, torch.tensor([1, 2]))
    state = rows.state_dict()
    assert state["state"] == {}
    state["param_groups"][0]["lr"] = 0.7
    rows.load_state_dict(state)
    assert [group["lr"] for group in rows.param_groups] == [0.7, 0.1, 0.1, 0.1, 0.1]


def test_rows_are_frozen_and_trained_again_by_their_parameter():
    rows = emb.offload(nn.Sequential(embedding(), nn.Linear(3, 2)), "memory:", optimizer=SGD)
    before = table_of(rows, "0")
    rows.parameters()[0].requires_grad_(False)
    one_step(rows.model, rows, torch.tensor([1, 2]))
    assert torch.equal(table_of(rows, "0"), before)
    rows.parameters()[0].requires_grad_(True)
    one_step(rows.model, rows, torch.tensor([1, 2]))
    assert not torch.equal(table_of(rows, "0"), before)
    rows.parameters()[0].requires_grad_(False)
    assert not emb.restore(rows)[0].weight.requires_grad


def test_a_state_of_tables_of_other_names_sends_no_gradients_to_them():
    store, ids = emb.open_training_store("memory:"), torch.tensor([1, 2])
    tables = [{"": emb.Table(name=name)} for name in ("first", "second")]
    first, second = (emb.offload(embedding(), store, optimizer=SGD, tables=each) for each in tables)
    second.load_state_dict(first.state_dict())
    before = table_of(first, ""), table_of(second, "")
    one_step(second.model, second, ids)
    assert torch.equal(table_of(first, ""), before[0])
    assert not torch.equal(table_of(second, ""), before[1])


def test_a_scheduler_sets_the_learning_rate_of_the_rows():
    native = embedding()
    rows = emb.offload(embedding(), "memory:", optimizer=SGD)
    theirs = torch.optim.SGD(native.parameters(), lr=0.1)
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 1, gamma=0.5) for each in (theirs, rows)]
    for _ in range(3):
        theirs.zero_grad()
        loss_of(native(FLAT)).backward()
        theirs.step()
        one_step(rows.model, rows, FLAT)
        for scheduler in schedulers:
            scheduler.step()
    assert rows.param_groups[0]["lr"] == 0.1 / 8
    torch.testing.assert_close(table_of(rows, ""), native.weight.data)


def test_a_scaler_scales_back_and_leaves_out_a_step_that_overflowed():
    native = embedding()
    rows = emb.offload(embedding(), "memory:", optimizer=SGD)
    loss_of(native(FLAT)).backward()
    torch.optim.SGD(native.parameters(), lr=0.1).step()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for factor in (float("inf"), 1.0):
        rows.zero_grad()
        scaler.scale(loss_of(rows.model(FLAT)) * factor).backward()
        scaler.step(rows)
        scaler.update()
    assert scaler.get_scale() == 512.0
    torch.testing.assert_close(table_of(rows, ""), native.weight.data)


def test_a_clipped_norm_is_the_native_one():
    native, model = (nn.Sequential(embedding(padding_idx=1), nn.Linear(3, 2)) for _ in range(2))
    native.load_state_dict(model.state_dict())
    rows = emb.offload(model, "memory:", optimizer=SGD)
    for module in (native, model, model):  # the second pass adds to the gradients of the first
        loss_of(module(PAIRS)).backward()
    loss_of(native(PAIRS)).backward()
    expected = nn.utils.clip_grad_norm_(native.parameters(), 0.5)
    got = nn.utils.clip_grad_norm_([*model.parameters(), *rows.parameters()], 0.5)
    torch.testing.assert_close(got, expected)
    torch.optim.SGD(native.parameters(), lr=0.1).step()
    rows.step()
    torch.testing.assert_close(table_of(rows, "0"), native[0].weight.data)


def test_gradients_are_added_up_over_passes_with_other_ids_a_row_for_each_distinct_one():
    native = embedding()
    rows = emb.offload(embedding(), "memory:", optimizer=SGD)
    for ids in ([1, 3, 3], [0, 3], [5]):
        for layer in (native, rows.model):
            loss_of(layer(torch.tensor(ids))).backward()
    (parameter,) = rows.parameters()
    assert parameter.shape == parameter.grad.shape == (4, 3)
    torch.testing.assert_close(parameter.grad, native.weight.grad[[0, 1, 3, 5]])
    rows.zero_grad()
    assert parameter.grad is None
    rows.step()
    assert torch.equal(table_of(rows, ""), values(6, 3))


def test_gradients_may_be_forgotten_between_forward_and_backward():
    rows = emb.offload(embedding(), "memory:", optimizer=SGD)
    loss = loss_of(rows.model(FLAT))
    rows.zero_grad()
    loss.backward()
    assert rows.parameters()[0].grad.any()


def test_a_step_scales_the_gradients_and_calls_a_closure():
    store = MemoryTrainingStore()
    rows = emb.offload(embedding(), store, optimizer=SGD)

    def closure():
        rows.zero_grad()
        loss = rows.model(torch.tensor([1, 4])).sum()
        loss.backward()
        return loss

    expected = values(6, 3)[[1, 4]]
    assert rows.step(closure, scale=0.5).item() == pytest.approx(expected.sum().item())
    torch.testing.assert_close(table_of(rows, "")[[1, 4]], expected - 0.1 * 0.5)


def test_the_model_trains_under_distributed_data_parallel(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        native = nn.Sequential(embedding(), nn.Linear(3, 2))
        model = copy.deepcopy(native)
        rows = emb.offload(model, "memory:", optimizer=SGD)
        parallel = nn.parallel.DistributedDataParallel(model)
        optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (native, parallel)]
        for _ in range(2):
            rows.zero_grad()
            for module, own in zip((native, parallel), optimizers, strict=True):
                own.zero_grad()
                loss_of(module(FLAT)).backward()
                own.step()
            rows.step(scale=1 / torch.distributed.get_world_size())
    finally:
        torch.distributed.destroy_process_group()
    torch.testing.assert_close(model[1].weight, native[1].weight)
    torch.testing.assert_close(table_of(rows, "0"), native[0].weight.data)


def test_a_gradient_that_is_not_finite_applies_nothing_at_all():
    model = nn.ModuleDict({"first": embedding(), "second": embedding()})
    rows = emb.offload(model, "memory:", optimizer=SGD, tables={"second": emb.Table(name="users")})
    factors = torch.ones(6, 1)
    factors[[1, 4]] = torch.tensor([[float("nan")], [float("inf")]])
    ids = torch.arange(6)
    (model["first"](ids).sum() + (model["second"](ids) * factors).sum()).backward()
    with pytest.raises(FloatingPointError, match=r"table 'users'.* 1, 4$"):
        rows.step()
    assert torch.equal(table_of(rows, "first"), values(6, 3))
    assert torch.equal(table_of(rows, "second"), values(6, 3))


def test_a_pass_without_backward_leaves_nothing_behind():
    rows = emb.offload(embedding(), "memory:", optimizer=SGD)
    fetched = []
    rows.model.register_forward_hook(lambda _layer, _ids, answer: fetched.append(weakref.ref(answer)))
    answer = rows.model(FLAT)
    node = answer.grad_fn
    while node.next_functions:
        node = node.next_functions[0][0]
    leaf = weakref.ref(node.variable)
    del answer, node
    gc.collect()
    assert fetched[0]() is None
    assert leaf() is None
    with torch.no_grad():
        assert not rows.model(FLAT).requires_grad
    assert rows.parameters()[0].grad is None


def test_a_compiled_model_leaves_the_layer_out():
    model = nn.Sequential(embedding(), nn.Linear(3, 2))
    native = copy.deepcopy(model)
    rows = emb.offload(model, "memory:", optimizer=SGD)
    compiled = torch.compile(model, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(FLAT), native(FLAT))
        one_step(compiled, rows, FLAT)
        loss_of(native(FLAT)).backward()
        with torch.no_grad():
            native[0].weight -= 0.1 * native[0].weight.grad
        native[0].weight.grad = None
    torch.testing.assert_close(table_of(rows, "0"), native[0].weight.data)


def test_a_copy_of_the_model_has_the_same_tables_and_no_pickle():
    rows = emb.offload(nn.Sequential(embedding(), nn.Linear(3, 2)), "memory:", optimizer=SGD)
    copied = copy.deepcopy(rows.model)
    one_step(rows.model, rows, FLAT)
    assert torch.equal(copied(FLAT), rows.model(FLAT))
    with pytest.raises(ConfigError, match="layer '0' has its rows in a store"):
        pickle.dumps(copied)
    with pytest.raises(AttributeError, match=r"layer '0' has its rows in a store.*restore gives it a weight"):
        copied[0].weight  # noqa: B018  # asking is the test


# -- refused ----------------------------------------------------------------------------------------------------------


class Own(nn.Embedding):
    pass


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(6, 3), nn.Linear(3, 6, bias=False)
        self.out.weight = self.embed.weight


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Sequential(nn.Embedding(6, 3, max_norm=1.0)), "'0' has max_norm"),
        (lambda: nn.Sequential(nn.Embedding(6, 3, scale_grad_by_freq=True)), "'0' has scale_grad_by_freq"),
        (lambda: nn.Sequential(nn.EmbeddingBag(6, 3, max_norm=1.0)), "'0' has max_norm"),
        (lambda: nn.Sequential(Own(6, 3)), "'0' is a Own, a subclass of Embedding"),
        (Tied, "'embed' shares its weight with 'out.weight'"),
        (lambda: nn.Sequential(nn.Embedding(6, 3).half()), r"'0' has rows of torch.float16, and tables are float32"),
        (lambda: nn.Linear(6, 3), "no embedding layer"),
        (lambda: nn.Sequential(nn.utils.spectral_norm(nn.Embedding(6, 3))), "the weight of '0' is computed by a param"),
    ],
)
def test_a_layer_that_would_not_be_the_same_is_refused_by_name(make, words):
    store = MemoryTrainingStore()
    with pytest.raises(ConfigError, match=words):
        emb.offload(make(), store, optimizer=SGD)
    assert store.tables() == {}


def test_a_model_that_is_sharded_is_refused(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        model = nn.Sequential(embedding(), nn.Linear(3, 2))
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(ConfigError, match="FSDP"):
            emb.offload(model, "memory:", optimizer=SGD)
    finally:
        torch.distributed.destroy_process_group()


# -- restored ---------------------------------------------------------------------------------------------------------


def test_a_restored_layer_has_its_class_and_options_and_the_rows_that_nobody_trained_by_the_rule():
    with emb.placeholders():
        bag = nn.EmbeddingBag(9, 3, mode="max", padding_idx=4, sparse=True)
    rows = emb.offload(nn.Sequential(bag), "memory:", optimizer=SGD, tables={"0": emb.Table(missing=emb.init(seed=7))})
    one_step(rows.model, rows, torch.tensor([[1, 8, 4]]))
    assert rows.store.count("0") == 3
    trained = rows.store.fetch("0", np.array([1, 8])).rows
    assert emb.restore(rows)[0] is bag
    assert type(bag) is nn.EmbeddingBag
    assert (bag.mode, bag.padding_idx, bag.sparse, bag.weight.requires_grad) == ("max", 4, True, True)
    expected = emb.init(seed=7).rows(np.arange(9), 3, "0")
    expected[4], expected[[1, 8]] = 0, trained
    assert np.array_equal(bag.weight.detach().numpy(), expected)
    assert not np.array_equal(trained, emb.init(seed=7).rows([1, 8], 3, "0"))


def test_rows_have_ended_once_they_are_restored_and_the_model_can_be_offloaded_again():
    rows = emb.offload(nn.Sequential(embedding()), "memory:", optimizer=SGD)
    model = emb.restore(rows)
    for call in (rows.step, lambda: emb.restore(rows)):
        with pytest.raises(EmbeddingError, match="was restored"):
            call()
    again = emb.offload(model, "memory:", optimizer=SGD)
    one_step(model, again, FLAT)
    assert not torch.equal(table_of(again, "0"), values(6, 3))


def test_a_restore_asks_the_store_once_which_tables_it_has(monkeypatch):
    rows = emb.offload(Towers(), "memory:", optimizer=SGD)
    asked, tables = [], rows.store.tables
    monkeypatch.setattr(rows.store, "tables", lambda: asked.append(1) or tables())
    emb.restore(rows)
    assert len(asked) == 1


def test_rows_restore_the_layers_that_are_theirs():
    model = nn.ModuleList([embedding(), embedding(shift=1.0)])
    first = emb.offload(model, "memory:", optimizer=SGD, tables={"1": None})
    second = emb.offload(model, "memory:", optimizer=SGD)
    assert (list(first.tables), list(second.tables)) == (["0"], ["1"])
    emb.restore(first)
    assert [type(layer) is nn.Embedding for layer in model] == [True, False]


def _gone(rows, _monkeypatch):
    rows.store.close()


def _wider(rows, _monkeypatch):
    rows.model[1].embedding_dim = 4


def _longer(rows, _monkeypatch):
    rows.model[1].num_embeddings = 7


def _no_memory(_rows, monkeypatch):
    monkeypatch.setattr(offloading, "available_memory", lambda: 143)  # one of the tables would fit


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_gone, "layer '0': the store does not have table '0' any more"),
        (_wider, "layer '1' is 6 x 4, but its table is 6 x 3"),
        (_longer, "layer '1' is 7 x 3, but its table is 6 x 3"),
        (_no_memory, "layer '1'.* 144 bytes, but only 143 bytes of memory are free"),
    ],
)
def test_a_table_that_does_not_go_back_is_refused_by_name_and_nothing_is_changed(spoil, words, monkeypatch):
    rows = emb.offload(nn.Sequential(embedding(), embedding()), "memory:", optimizer=SGD)
    spoil(rows, monkeypatch)
    with pytest.raises(EmbeddingError, match=words):
        emb.restore(rows)
    assert all(isinstance(layer, offloading.Offloaded) for layer in rows.model)
    rows.step()


def test_a_table_of_any_ids_does_not_go_back():
    rows = emb.offload(
        nn.Sequential(embedding(), embedding()), "memory:", optimizer=SGD, tables={"1": emb.Table(ids="any")}
    )
    with pytest.raises(EmbeddingError, match="layer '1': its table accepts any id"):
        emb.restore(rows)
    assert isinstance(rows.model[0], offloading.Offloaded)


# -- placeholders -----------------------------------------------------------------------------------------------------


def test_a_placeholder_has_no_rows_until_it_is_offloaded_and_its_padding_row_is_zeros():
    with emb.placeholders():
        model = nn.Sequential(nn.Embedding(6, 3, padding_idx=2), nn.Linear(3, 2))
        given = nn.Embedding.from_pretrained(values(6, 3))
    assert model[0].weight.is_meta
    assert not model[1].weight.is_meta
    assert torch.equal(given.weight, values(6, 3))
    with pytest.raises(EmbeddingError, match=r"this Embedding is a placeholder .*penstock.embeddings.offload"):
        model(FLAT)
    rows = emb.offload(model, "memory:", optimizer=SGD)
    expected = emb.init().rows(np.arange(6), 3, "0")
    expected[2] = 0
    assert np.array_equal(table_of(rows, "0").numpy(), expected)
    assert model(FLAT).shape == (8, 2)
    assert not emb.restore(rows)[0].weight.is_meta
    model(FLAT)


def test_placeholders_nest_are_of_a_thread_and_are_undone_by_an_exception():
    own = nn.Embedding.__init__, nn.EmbeddingBag.__init__

    def is_meta():
        return nn.Embedding(2, 2).weight.is_meta, nn.EmbeddingBag(2, 2).weight.is_meta

    found = []
    with contextlib.suppress(ZeroDivisionError), emb.placeholders():
        with emb.placeholders():
            found.append(is_meta())
        found.append(is_meta())
        other = threading.Thread(target=lambda: found.append(is_meta()))
        other.start()
        other.join()
        1 / 0  # noqa: B018
    assert found == [(True, True), (True, True), (False, False)]
    assert is_meta() == (False, False)
    assert (nn.Embedding.__init__, nn.EmbeddingBag.__init__) == own


HUGE = """
import re
import torch
from torch import nn
from penstock import embeddings as emb

def train(store, size):
    with emb.placeholders():
        model = nn.Sequential(nn.Embedding(size, 64, padding_idx=0), nn.Linear(64, 2))
    rows = emb.offload(model, store, optimizer=emb.Adagrad(lr=0.1), tables={"0": emb.Table(name=f"of{size}")})
    for step in range(3):
        model(torch.tensor([1, size - 1 - step, size // 2])).sum().backward()
        rows.step()
        rows.zero_grad()
    with torch.no_grad():
        model.eval()(torch.tensor([5, size - 7]))
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read())[1]) / 1024

print(*(train(store, size) for size in (1000, 2**40) for store in ("memory:", "shared:rows")))
"""


def test_a_table_of_a_trillion_rows_takes_the_memory_of_those_that_are_trained(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", HUGE], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    _, small, memory, shared = map(float, done.stdout.split())
    assert memory - small < 100
    assert shared - small < 100
