from __future__ import annotations

import json
import math
import re

import msgspec
import pytest

from penstock.artifact.manifest import BatchEntry, FileEntry, GraphEntry, Lookup, Manifest, ReferenceEntry, TableEntry
from penstock.artifact.manifest_json import batch_from_entry, batch_to_entry, manifest_from_json, manifest_to_json
from penstock.config import Batch
from penstock.embeddings.rules import init
from penstock.errors import ArtifactInvalid, ConfigError
from penstock.features.tensors import TensorSpec
from rows import each

SHA = "0123456789abcdef" * 4
FILE = FileEntry(SHA, 3)
GRAPH = GraphEntry("onnx", "model.onnx", (TensorSpec("x", "float32", (2, None)),), (TensorSpec("p", "float32"),))
MANIFEST = Manifest(
    schema=3,
    name="affairs",
    files=dict.fromkeys(
        ("features.json", "model.onnx", "reference_rows/rows.json", "saved_model/saved_model.pb"), FILE
    ),
    graphs=(GRAPH,),
    batch=BatchEntry(32, 0.0, None),
    reference_rows=ReferenceEntry(3),
    tolerance=(1e-5, 1e-5),
    classes=("no", "yes"),
    libraries={"torch": "2.13.0"},
    created="2026-11-23T02:00:00+00:00",
    git=None,
    metadata={"über": [1, None, 2**70, 0.1]},
)

IDS = GraphEntry(
    "onnx",
    "ids.onnx",
    (TensorSpec("user", "int64"),),
    (TensorSpec("u", "int64"), TensorSpec("i", "int64", (3,))),
    "ids",
)
FED = GraphEntry("onnx", "model.onnx", (TensorSpec("r", "float32", (2,)), TensorSpec("at", "int64")), GRAPH.outputs)
USER = TableEntry(
    name="user",
    path="embed.user",
    ids="any",
    size=None,
    width=2,
    rows=0,
    missing=init(7),
    placed="outside",
    input="r",
    shards=(),
    lookups=(Lookup("u", "at", by_row=True),),
)
ITEM = msgspec.structs.replace(
    USER, name="item", ids="dense", size=4, rows=4, placed="inlined", input="", lookups=(Lookup("i", "", by_row=True),)
)
WITH_TABLES = msgspec.structs.replace(
    MANIFEST, files={**MANIFEST.files, "ids.onnx": FILE}, graphs=(IDS, FED), tables=(USER, ITEM)
)


def changed(**fields):
    return msgspec.structs.replace(MANIFEST, **fields)


def as_dict():
    return json.loads(manifest_to_json(MANIFEST))


def refusal(found) -> str:
    content = found if isinstance(found, bytes) else json.dumps(found).encode()
    with pytest.raises(ArtifactInvalid) as caught:
        manifest_from_json(content)
    assert caught.value.file == "manifest.json"
    return str(caught.value)


def test_a_manifest_is_read_as_it_was_written_and_written_in_one_way():
    content = manifest_to_json(MANIFEST)
    assert manifest_from_json(content) == MANIFEST
    assert manifest_to_json(manifest_from_json(content)) == content
    assert content.startswith(b'{\n  "base": null,\n  "batch": {')
    assert content.endswith(b"}\n")


def test_without_tables_outside_a_manifest_is_as_it_was_before_there_were_any():
    found = as_dict()
    assert (found["schema"], found["run"], found["tables"], found["base"]) == (3, None, [], None)
    assert found["graphs"][0].keys() == {"format", "path", "inputs", "outputs"}


@each("field", sorted(as_dict().keys() - {"run", "tables", "base"}))
def test_no_field_may_be_missing(field):
    found = as_dict()
    del found[field]
    assert f"missing required field `{field}`" in refusal(found)


@each(
    ("change", "said"),
    [
        ({"more": 1}, "unknown field `more`"),
        ({"run": {}}, r"Expected `str \| null`"),
        ({"run": ""}, "run is '', but must have 1 to 200 printable characters"),
        ({"run": "a\n"}, r"run is 'a\\n'"),
        ({"run": "r" * 201}, "run is 'r+', but must have 1 to 200"),
        ({"base": {}}, "Expected `null`"),
        ({"tables": [1]}, "Expected `object`, got `int`"),
        ({"name": 3}, "Expected `str`"),
        ({"schema": True}, "Invalid enum value|Expected `int`"),
        ({"schema": "1"}, "Expected `int`"),
        (
            {"schema": 0},
            "schema 0, but this Penstock reads only schema 1, 2 and 3: use the version that wrote it, or save",
        ),
        (
            {"schema": 4},
            "schema 4, but this Penstock reads only schema 1, 2 and 3: use the version that wrote it or a newer one",
        ),
        ({"tolerance": [-1, 0]}, "both numbers must be finite and at least 0"),
        ({"tolerance": [1]}, "length 2"),
        ({"reference_rows": {"rows": 0, "path": "reference_rows"}}, "but must be at least 1"),
        ({"reference_rows": {"rows": 3, "path": "../r"}}, "no file is below the path of the reference rows, '../r'"),
        ({"created": "yesterday"}, "Invalid isoformat"),
        ({"batch": {"max_size": 0, "max_wait": 0.0, "max_idle_gap": None}}, "max_size must be at least 1, got 0"),
        (
            {"batch": {"max_size": 10**30, "max_wait": 0.0, "max_idle_gap": None}},
            f"batch: max_size must be at most 1000000, got {10**30}",
        ),
        (
            {"batch": {"max_size": 1, "max_wait": 1e300, "max_idle_gap": None}},
            "batch: max_wait must be at most 86400, or inf",
        ),
        ({"batch": {"max_size": 1, "max_wait": "soon", "max_idle_gap": None}}, "batch.max_wait"),
        (
            {"batch": {"max_size": 1, "max_wait": "auto", "max_idle_gap": 0.1}},
            "batch: max_idle_gap=0.1 needs a fixed max_wait",
        ),
        ({"batch": {"max_size": 1, "max_wait": 10**400, "max_idle_gap": None}}, "batch.*max_wait"),
        ({"graphs": []}, "there is no graph"),
        (
            {"name": "a\x1b[31m"},
            r"name: a service's name must consist of letters, digits and `._-`, .* got 'a\\x1b\[31m'",
        ),
        ({"name": ".."}, "name: a service's name must consist of letters"),
        ({"git": "\ud800"}, "half of a surrogate pair, which is not valid text"),
        ({"metadata": {"\udfff": 1}}, "half of a surrogate pair, which is not valid text"),
        ({"files": {"\ud800": {"sha256": SHA, "bytes": 1}}}, "half of a surrogate pair, which is not valid text"),
        ({"classes": [["\ud800"]]}, "half of a surrogate pair, which is not valid text"),
    ],
)
def test_what_is_not_known_is_refused(change, said):
    assert re.search(said, refusal({**as_dict(), **change}))


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../b", "a//b", "./a", "", "a/", "a\0b", "x" * 256])
def test_a_path_that_may_lead_out_or_is_not_plain_is_refused(path):
    found = as_dict()
    found["files"][path] = {"sha256": SHA, "bytes": 1}
    assert f"{path!r} is not a valid path inside the artifact" in refusal(found)


def test_a_path_of_very_many_names_is_refused_before_it_is_walked():
    found = as_dict()
    found["files"]["/".join(["d"] * 2000)] = {"sha256": SHA, "bytes": 1}
    assert "a path has 2000 components, but the maximum is 100" in refusal(found)


@pytest.mark.parametrize(
    ("path", "entry", "said"),
    [
        ("manifest.json", {}, "must not be listed among the files"),
        ("DIGEST", {}, "must not be listed among the files"),
        ("reference_rows/rows.json/x", {}, "'reference_rows/rows.json' is listed as a file and as a directory"),
        ("a", {"sha256": SHA.upper()}, "the sha256 of 'a' is not 64 hexadecimal digits"),
        ("a", {"sha256": SHA[1:]}, "the sha256 of 'a' is not 64 hexadecimal digits"),
        ("a", {"sha256": SHA + "0"}, "the sha256 of 'a' is not 64 hexadecimal digits"),
        ("a", {"bytes": -1}, "'a' has -1 bytes"),
        ("a", {"bytes": 1.5}, "Expected `int`"),
    ],
)
def test_a_file_that_cannot_be_is_refused(path, entry, said):
    found = as_dict()
    found["files"][path] = {"sha256": SHA, "bytes": 1, **entry}
    assert said in refusal(found)


def test_a_spec_has_to_be_among_the_files():
    found = as_dict()
    del found["files"]["features.json"]
    assert "'features.json' is not among the files" in refusal(found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "pickle"}, "Invalid enum value 'pickle'"),
        ({"path": "other.onnx"}, "needs 'other.onnx', which is not among the files"),
        ({"format": "saved_model"}, "needs 'model.onnx/saved_model.pb', which is not among the files"),
        ({"inputs": []}, "the names must be unique, and at least one"),
        ({"outputs": [{"name": "p", "dtype": "float32", "shape": []}] * 2}, "the names must be unique"),
        ({"outputs": [{"name": "p", "dtype": "object", "shape": []}]}, "'p' has the unknown dtype 'object'"),
        ({"outputs": [{"name": "p", "dtype": "str", "shape": [-1]}]}, "'p' has the shape (-1,)"),
        ({"outputs": [{"name": "p", "dtype": "str", "shape": [1] * 64}]}, "'p' has 64 axes besides the batch"),
    ],
)
def test_a_graph_that_cannot_be_is_refused(change, said):
    found = as_dict()
    found["graphs"][0] |= change
    assert said in refusal(found)


def test_two_graphs_have_two_formats_and_the_same_outputs():
    other = GraphEntry("saved_model", "saved_model", GRAPH.inputs, GRAPH.outputs)
    assert manifest_from_json(manifest_to_json(changed(graphs=(GRAPH, other)))).graphs == (GRAPH, other)
    with pytest.raises(ConfigError, match="a graph is listed twice: onnx model, onnx model"):
        manifest_to_json(changed(graphs=(GRAPH, GRAPH)))
    other = msgspec.structs.replace(other, outputs=(TensorSpec("q", "float32"),))
    with pytest.raises(ConfigError, match="onnx and saved_model have different outputs"):
        manifest_to_json(changed(graphs=(GRAPH, other)))


def test_tables_survive_json_with_the_graphs_of_each_role():
    found = manifest_from_json(manifest_to_json(WITH_TABLES))
    assert found == WITH_TABLES
    assert found.program("onnx") == {"ids": IDS, "model": FED}
    assert (found.outputs, found.outside) == (GRAPH.outputs, (USER,))
    assert found.ids == ((IDS.outputs[0], True), (IDS.outputs[1], True))


def in_old_words(found, schema):
    """Turn a manifest of today into one of an earlier schema, in place."""
    found["schema"] = schema
    found["probes"] = found.pop("reference_rows")
    found["batch"] = {{"max_idle_gap": "max_gap"}.get(key, key): value for key, value in found["batch"].items()}


def of_first_schema(found):
    in_old_words(found, 1)


def without_tables_outside(found):
    found.update(graphs=found["graphs"][1:], tables=found["tables"][1:])


def without_ids(found):
    del found["graphs"][0]


def of_second_schema_without_tables(found):
    in_old_words(found, 2)
    without_tables_outside(found)


def ids_without_tables(found):
    found.update(tables=[])


def of_two_formats(found):
    ids = {**found["graphs"][0], "format": "pt2", "outputs": found["graphs"][0]["outputs"][:1]}
    found["graphs"] += [ids, {**found["graphs"][1], "format": "pt2"}]


def table_twice(found):
    found["tables"][1]["name"] = "user"


def lookup_of_nothing(found):
    found["tables"][0]["lookups"][0]["ids"] = "x"


def ids_as_floats(found):
    found["graphs"][0]["outputs"][0]["dtype"] = "float32"


def rows_for_nobody(found):
    found["tables"][0]["input"] = "x"


def places_for_nobody(found):
    found["tables"][0]["lookups"][0]["places"] = "x"


def inlined_with_an_input(found):
    found["tables"][1]["input"] = "r"


def dense_without_size(found):
    found["tables"][1]["size"] = None


def rows_without_shards(found):
    found["tables"][0]["rows"] = 1


def shard_of_no_file(found):
    shard = {"file": "tables/user/shard-00001-of-00001.safetensors", "first": 0, "last": 0, "rows": 1}
    found["tables"][0].update(rows=1, shards=[shard])


@each(
    ("edit", "said"),
    [
        (of_first_schema, "it is of schema 1, and has 1 tables outside of the graph"),
        (of_second_schema_without_tables, "it is of schema 2, and has 0 tables outside of the graph"),
        (without_tables_outside, "it is of schema 3, and has 0 tables outside of the graph"),
        (without_ids, "the onnx graphs are model, but must be ids and model"),
        (ids_without_tables, "the onnx graphs are ids and model, but must be model"),
        (of_two_formats, "the ids graphs onnx and pt2 have different outputs"),
        (table_twice, "a table is listed twice: ['user', 'user']"),
        (lookup_of_nothing, "the ids graph gives ['u', 'i'], and the lookups of the tables need others"),
        (ids_as_floats, "an output of the ids graph is not int64"),
        (rows_for_nobody, "table 'user' fills an input 'x', which the model does not take"),
        (places_for_nobody, "table 'user' fills an input 'x', which the model does not take"),
        (inlined_with_an_input, "table 'item' is in the graph, and has shards, inputs or ids without end"),
        (dense_without_size, "table 'item': size must be the number of rows with dense ids"),
        (rows_without_shards, "table 'user' has 1 rows, which is not the sum of its shards"),
        (shard_of_no_file, "needs 'tables/user/shard-00001-of-00001.safetensors', which is not among the files"),
    ],
)
def test_tables_and_graphs_that_do_not_fit_are_refused(edit, said):
    found = json.loads(manifest_to_json(WITH_TABLES))
    edit(found)
    assert said in refusal(found)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "Expecting value"),
        (b"\xff", "utf-8"),
        (b"[]", "it must be an object"),
        (b"{}", "missing required field"),
        (b'{"schema": 1, "schema": 1}', "the key 'schema' is given twice"),
        (b'{"schema": NaN}', "NaN is not valid JSON"),
        (b'{"schema": Infinity}', "Infinity is not valid JSON"),
        (b"[" * 100_000, "recursion"),
        (b'{"schema": ' + b"1" * 5000 + b"}", "4300"),
    ],
)
def test_what_is_no_json_object_is_refused(content, said):
    assert said in refusal(content)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"a\nb\x1b[2J": 1}, r"unknown field `a\nb\x1b[2J`"),
        ({"x" * 5000: 1}, "[... cut: "),
        ({"schema": 10**4000}, "[... cut: "),
    ],
)
def test_what_is_wrong_is_said_on_one_line_that_somebody_can_read(change, said):
    words = refusal({**as_dict(), **change})
    assert said in words
    assert words.isprintable()
    assert len(words) < 1100


def test_a_key_that_is_there_twice_is_found_anywhere():
    content = manifest_to_json(MANIFEST).replace(b'"bytes": 3,', b'"bytes": 3, "bytes": 3,', 1)
    assert "the key 'bytes' is given twice" in refusal(content)


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"at": math.nan}},
        {"metadata": {"at": math.inf}},
        {"metadata": {"at": object()}},
        {"metadata": {"at": "\ud800"}},
        {"classes": (1j,)},
        {"tolerance": (math.inf, 0.0)},
        {"created": "now"},
        {"reference_rows": ReferenceEntry(0)},
    ],
)
def test_what_could_not_be_read_again_is_never_written(fields):
    with pytest.raises(ConfigError):
        manifest_to_json(changed(**fields))


@pytest.mark.parametrize(
    "batch",
    [
        Batch(),
        Batch(max_wait=0),
        Batch(max_size=7, max_wait=0.5),
        Batch(max_wait=math.inf, max_idle_gap=0.1),
        Batch(max_wait=1, max_idle_gap=2),
        Batch(max_wait=1, delay_when_idle=False),
    ],
)
def test_a_batch_policy_survives_json(batch):
    assert batch_from_entry(batch_to_entry(batch)) == batch
    assert batch_from_entry(msgspec.json.decode(msgspec.json.encode(batch_to_entry(batch)), type=BatchEntry)) == batch
    json.dumps(msgspec.to_builtins(batch_to_entry(batch)), allow_nan=False)


def test_a_learned_wait_is_stored_as_such_and_one_of_0_stays_0():
    assert msgspec.to_builtins(batch_to_entry(Batch())) == {"max_size": 32, "max_wait": "auto", "max_idle_gap": None}
    assert msgspec.to_builtins(batch_to_entry(Batch(max_wait=0)))["max_wait"] == 0.0
    assert batch_from_entry(BatchEntry(32, 0.0, None)) == Batch(max_wait=0)


@pytest.mark.parametrize("manifest", [MANIFEST, WITH_TABLES], ids=["schema 1", "schema 2"])
def test_a_manifest_of_an_earlier_schema_is_read_in_its_own_words(manifest):
    batch = BatchEntry(32, 0.1, 0.5, delay_when_idle=False)
    files = {**manifest.files, "probes/rows.json": FILE}
    found = json.loads(manifest_to_json(msgspec.structs.replace(manifest, batch=batch, files=files)))
    schema = 2 if manifest.tables else 1
    in_old_words(found, schema)
    found["batch"]["hold_after_idle"] = found["batch"].pop("delay_when_idle")
    del found["probes"]["path"]
    assert manifest_from_json(json.dumps(found).encode()) == msgspec.structs.replace(
        manifest, schema=schema, batch=batch, files=files, reference_rows=ReferenceEntry(3, "probes")
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reference_rows": {"rows": 3, "path": "probes"}}, "it has 'reference_rows', which is 'probes' in its schema"),
        ({"batch": {"max_idle_gap": 1.0}}, "it has 'max_idle_gap', which is 'max_gap' in its schema"),
        ({"batch": {"delay_when_idle": True}}, "it has 'delay_when_idle', which is 'hold_after_idle' in its schema"),
        ({"batch": 3}, "Expected `object`, got `int` - at `$.batch`"),
        ({"probes": 3}, "Expected `object`, got `int` - at `$.reference_rows`"),
    ],
)
def test_an_earlier_schema_has_no_word_of_a_later_one(change, said):
    found = as_dict()
    in_old_words(found, 1)
    assert said in refusal({**found, **change})


@pytest.mark.parametrize("word", ["probes", "max_gap", "hold_after_idle"])
def test_a_later_schema_has_no_word_of_an_earlier_one(word):
    found = as_dict()
    (found if word == "probes" else found["batch"])[word] = None
    assert f"unknown field `{word}`" in refusal(found)
