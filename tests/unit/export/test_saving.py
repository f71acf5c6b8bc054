"""Saving without a framework: the model is a function of numpy, and its graph is made by hand."""

import contextlib
import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import onnx_bytes
import penstock as ps
import tiny_artifacts
from penstock.artifact.drafting import Draft
from penstock.artifact.opened_artifact import open_artifact
from penstock.errors import ConfigError, ExportRefused
from penstock.export import saving
from penstock.export.exporter import ModelAnswer, WholeModel
from penstock.export.save_options import SaveOptions
from penstock.export.saving import ROWS_APART, agreed_classes, save_exported, save_for_run, small_batches
from penstock.features import columns
from penstock.features.kinds import Bucketized, Ids, Numeric
from penstock.features.tensors import TensorSpec
from tiny_artifacts import ROWS, features

FITTING = {
    "name": "affairs",
    "outputs": ["probability"],
    "classes": None,
    "batch": ps.Batch(max_size=7, max_wait=0.01),
    "formats": None,
    "tolerance": (1e-5, 1e-5),
    "max_bytes": 10_000,
    "inline_limit": 5_000,
    "outside": (),
    "shard_bytes": 2**20,
    "metadata": {"epochs": 3},
}


class Heard:
    """What is told of progress."""

    def __init__(self):
        self.steps = []
        self.notes = []

    def step(self, words):
        self.steps.append(words)

    def note(self, words):
        self.notes.append(words)


class Exporter(WholeModel):
    """Of a model whose graph is in `tiny_artifacts`; what it answers is changed by a function."""

    libraries = ("onnxruntime", "not-installed-anywhere")
    formats = ("onnx",)
    doubt = ""
    refuses_rows = False

    def __init__(self, change=lambda answers, _: answers, *, classes=None, written=None):
        self.change = change
        self.classes = classes
        self.written = written
        self.asked = 0
        self.is_materialized = False

    def check_inputs(self, inputs):
        """All of them are taken."""

    @contextlib.contextmanager
    def materialized(self):
        self.is_materialized = True
        try:
            yield
        finally:
            self.is_materialized = False

    def answer(self, inputs):
        assert not self.is_materialized, "a model answers as it was trained"
        self.asked += 1
        exact = tiny_artifacts.model(**inputs) if set(inputs) == {"x", "occupation"} else inputs["user"]
        changed = self.change(exact.astype(np.float32), self.asked)
        return changed if isinstance(changed, ModelAnswer) else ModelAnswer([changed])

    def write(self, format_, folder, signature):
        assert self.is_materialized
        if isinstance(self.written, BaseException):
            raise self.written
        (folder / "model.onnx").write_bytes(self.written or tiny_artifacts.graph())
        return "model.onnx"


def saved(tmp_path, exporter, *, probes=ROWS[:2], check=None, spec=None, heard=None, **options):
    return save_exported(
        exporter,
        tmp_path / "made" / "affairs",
        spec or features(),
        (probes, check),
        SaveOptions(**{**FITTING, **options}),
        heard or Heard(),
    )


def refusal(tmp_path, kind, exporter, **options):
    """What was raised; nothing is left."""
    with pytest.raises(kind) as caught:
        saved(tmp_path, exporter, **options)
    assert [path for path in tmp_path.rglob("*") if path.name != "made"] == []
    return caught.value


def test_what_is_saved_is_proved_and_opens_again(tmp_path):
    heard = Heard()
    report = saved(tmp_path, Exporter(), check=ROWS, heard=heard)
    artifact = open_artifact(report.path, digest=report.digest)
    manifest = artifact.manifest
    assert report.path == tmp_path / "made" / "affairs"
    assert report.rows == 6
    assert 0 <= report.max_difference["probability"] <= 1e-6
    assert (manifest.name, manifest.reference_rows.rows, manifest.metadata) == ("affairs", 2, {"epochs": 3})
    assert (manifest.batch.max_size, manifest.batch.max_wait) == (7, 0.01)
    assert artifact.features == features()
    assert {"python", "penstock", "numpy", "onnxruntime"} == set(manifest.libraries)
    assert list(report.path.parent.iterdir()) == [report.path]
    assert heard.steps[0] == "running the model"
    assert heard.notes[0] == "2 reference rows are stored in the artifact: everyone with access to it can read them"
    assert "6 rows, greatest difference" in heard.notes[-1]


def test_the_manifest_says_when_and_from_which_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "time_now", lambda: "2026-11-23T01:02:03Z")
    monkeypatch.setattr(saving, "git_commit", lambda: "0123abc-dirty")
    manifest = open_artifact(saved(tmp_path, Exporter()).path).manifest
    assert (manifest.created, manifest.git) == ("2026-11-23T01:02:03Z", "0123abc-dirty")


def test_rows_to_check_do_not_ship(tmp_path):
    report = saved(tmp_path, Exporter(), probes=ROWS[:1], check=ROWS[1:])
    shipped = json.loads((report.path / "reference_rows" / "rows.json").read_text())
    assert shipped == features().to_rows(ROWS[:1])


def test_an_answer_that_differs_is_refused_with_format_output_row_and_both_values(tmp_path):
    def change(answers, _):
        if len(answers) == 2:  # the rows to check, and no probe
            answers[-1] += 0.25
        return answers

    error = refusal(tmp_path, ExportRefused, Exporter(change), probes=ROWS[:1], check=ROWS[1:3])
    exact = tiny_artifacts.model(**features().encode(ROWS[2:3]))[0]
    assert (error.format, error.output, error.row) == ("onnx", "probability", 2)
    assert error.got == pytest.approx(exact, abs=1e-6)
    assert error.expected == pytest.approx(exact + 0.25, abs=1e-6)


def test_a_graph_that_its_own_runtime_cannot_open_is_refused(tmp_path):
    error = refusal(tmp_path, ExportRefused, Exporter(written=b"no graph"))
    assert "the saved graphs cannot be used" in str(error)
    assert "onnx" in str(error)


def test_a_wider_tolerance_lets_it_pass(tmp_path):
    report = saved(tmp_path, Exporter(lambda answers, _: answers + 0.25), tolerance=(0.3, 0.0))
    assert report.max_difference["probability"] == pytest.approx(0.25, abs=1e-6)


def test_a_model_that_answers_otherwise_when_asked_again_is_refused(tmp_path):
    error = refusal(tmp_path, ExportRefused, Exporter(lambda answers, asked: answers + asked))
    assert "Check for a clock, random numbers" in str(error)
    assert error.output == "probability"
    assert error.got - error.expected == pytest.approx(1)


@pytest.mark.parametrize(
    ("asked", "told", "row"),
    [
        (4, "in a batch of 1 it differs from that among 2 rows", 0),
        (5, "in a batch of 1 it differs from that among 2 rows", 1),
        (6, "in a batch of 3 it differs from that among 2 rows", 0),
        (8, "in a batch of 1 it differs from that among 4 rows", 3),
        (11, "in a batch of 3 it differs from that among 4 rows", 2),
    ],
)
def test_a_model_that_answers_a_row_otherwise_in_a_small_batch_is_refused(tmp_path, asked, told, row):
    """Its graph answers every batch as the model answers all rows at once, so the proof finds nothing."""
    exporter = Exporter(lambda answers, call: answers * 2 if call == asked else answers)
    error = refusal(tmp_path, ExportRefused, exporter, probes=ROWS[:2], check=ROWS)
    assert f"depends on the batch: {told}, and its graph has one output for it" in str(error)
    assert (error.format, error.output, error.row, exporter.asked) == ("", "probability", row, asked)
    assert error.got == pytest.approx(2 * error.expected)


def test_a_model_is_asked_about_two_tables_twice_and_in_small_batches(tmp_path):
    sizes = []

    def note(answers, _):
        sizes.append(len(answers))
        return answers

    saved(tmp_path, Exporter(note), probes=ROWS[:2], check=ROWS)
    assert sizes == [2, 4, 2, *[1, 1, 3], *[1, 1, 1, 1, 3, 3]]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda answers: answers.reshape(()), "'float32 (1,)' among all, 'float32 ()' in the small batch"),
        (lambda answers: ModelAnswer([answers, answers]), "has the outputs probability for batches of 2, and not of 1"),
        (lambda answers: ModelAnswer([answers], ("odds",)), "the outputs probability for batches of 2, and not of 1"),
    ],
)
def test_a_model_with_another_kind_of_answer_for_one_row_is_refused(tmp_path, change, told):
    exporter = Exporter(lambda answers, _: change(answers) if len(answers) == 1 else answers)
    assert told in str(refusal(tmp_path, ExportRefused, exporter))


def test_a_model_that_fails_on_one_row_is_refused_in_its_own_words(tmp_path):
    def fail(answers, _):
        if len(answers) == 1:
            raise ConfigError("predict raised ValueError: too few")
        return answers

    error = refusal(tmp_path, ExportRefused, Exporter(fail))
    assert str(error) == "the model accepts batches of 2, and not of 1: predict raised ValueError: too few"


@pytest.mark.parametrize("rows", [1, 2, 3, 4, ROWS_APART - 1, ROWS_APART, ROWS_APART + 1, 1000, 10**9])
def test_a_model_is_asked_about_rows_from_the_first_to_the_last_but_not_about_all(rows):
    batches = small_batches(rows)
    alone = [batch[0] for batch in batches if len(batch) == 1]
    threes = [batch for batch in batches if len(batch) == 3]
    assert len(alone) == len(set(alone)) == min(rows, ROWS_APART)
    assert (alone, alone[0], alone[-1]) == (sorted(alone), 0, rows - 1)
    assert alone + threes == [batch[0] if len(batch) == 1 else batch for batch in batches]
    assert {place for batch in threes for place in batch} == set(alone)
    steps = [after - before for before, after in pairwise(alone)]
    assert max(steps, default=0) - min(steps, default=0) <= 1


@pytest.mark.parametrize(
    ("asked", "wrong", "row"), [(2, 1, 1), (4, 0, 2)], ids=["the second probe", "the first row to check, after two"]
)
def test_nan_of_the_model_itself_is_refused_with_its_row(tmp_path, asked, wrong, row):
    def change(answers, _):
        if len(answers) == asked:
            answers[wrong] = np.nan
        return answers

    error = refusal(tmp_path, ExportRefused, Exporter(change), probes=ROWS[:2], check=ROWS)
    assert "the model itself returns NaN" in str(error)
    assert error.row == row


def test_a_model_is_materialized_while_it_is_written_and_not_after_an_error(tmp_path):
    seen = []

    class Watched(Exporter):
        def write(self, *arguments):
            seen.append(self.is_materialized)
            return super().write(*arguments)

    exporter = Watched(written=ExportRefused("no"))
    refusal(tmp_path, ExportRefused, exporter)
    assert (seen, exporter.is_materialized) == ([True], False)


def test_the_rows_of_tables_outside_are_not_counted_against_max_bytes(tmp_path):
    class Large(Exporter):
        def write_tables(self, folder, saved, shard_bytes):
            (folder / "rows").write_bytes(bytes(FITTING["max_bytes"]))
            return ()

    assert saved(tmp_path, Large()).rows


def test_a_model_without_tables_has_none_to_leave_outside(tmp_path):
    error = refusal(tmp_path, ConfigError, Exporter(), outside=["user"])
    assert "'user', which is not the path of a table: all weights of this model are in the graph" in str(error)


def test_graphs_beyond_max_bytes_are_refused(tmp_path):
    size = len(tiny_artifacts.graph())
    saved(tmp_path, Exporter(), max_bytes=size)
    error = refusal(tmp_path / "other", ExportRefused, Exporter(), max_bytes=size - 1)
    assert f"the graphs have {size} bytes, more than max_bytes ({size - 1})" in str(error)


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), OSError(28, "No space left on device"), ExportRefused("no")])
def test_what_is_raised_while_a_graph_is_written_leaves_nothing(tmp_path, raised):
    assert refusal(tmp_path, type(raised), Exporter(written=raised)) is raised


def test_a_graph_that_is_none_is_refused(tmp_path):
    refusal(tmp_path, ps.PenstockError, Exporter(written=b"not a graph"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"probes": []}, "reference_rows has no rows"),
        ({"probes": [{**ROWS[0], "age": "old"}]}, r"reference_rows: .* at `\$\[0\]\.age`"),
        ({"check": [ROWS[0], {**ROWS[0], "age": "old"}]}, r"validation_data: .* at `\$\[1\]\.age`"),
        ({"outputs": ["a", "b"]}, "has 2 names, but the model has 1 outputs"),
        (
            {"classes": ["a", "b", "c"]},
            r"classes has 3 entries, but no output has as many values a row: probability \[\]",
        ),
        ({"classes": ["a"]}, r"classes has 1 entries, but no output has as many values a row"),
        ({"formats": ["pt2"]}, "onnxruntime cannot be exported to 'pt2'; supported: onnx"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(tmp_path, options, reason):
    exporter = Exporter(written=AssertionError("was written"))
    assert re.search(reason, str(refusal(tmp_path, ConfigError, exporter, **options)))


def test_other_classes_than_the_model_has_are_refused(tmp_path):
    exporter = Exporter(classes=["no", "yes"])
    error = refusal(tmp_path, ConfigError, exporter, classes=["yes", "no"])
    assert "the model was fitted with the classes ['no', 'yes']" in str(error)


@pytest.mark.parametrize("given", [None, ["no", "yes"]])
def test_the_classes_stand_in_the_manifest(tmp_path, given):
    report = saved(tmp_path, Exporter(classes=["no", "yes"]), classes=given)
    assert open_artifact(report.path).manifest.classes == ("no", "yes")


@pytest.mark.parametrize(
    ("shape", "classes", "fits"),
    [
        ((), 2, True),  # the probability of the second
        ((1,), 2, True),
        ((1,), 3, False),
        ((3,), 3, True),
        ((3,), 2, False),
        ((4, 3), 3, True),
    ],
)
def test_classes_fit_an_output_of_one_value_for_each_or_of_one_for_two(shape, classes, fits):
    outputs = [TensorSpec("score", "float32", shape)]
    if fits:
        assert agreed_classes(list(range(classes)), None, outputs) == list(range(classes))
    else:
        with pytest.raises(ConfigError, match=f"classes has {classes} entries"):
            agreed_classes(list(range(classes)), None, outputs)


def test_outputs_of_another_shape_for_the_rows_to_check_are_refused(tmp_path):
    def change(answers, _):
        return answers if len(answers) == 2 else answers[:, None]

    error = refusal(tmp_path, ConfigError, Exporter(change), check=ROWS)
    assert "output 'probability' is float32[] a row for the reference rows, but float32[1] for validation_data" in str(
        error
    )


def test_more_outputs_for_the_rows_to_check_are_refused(tmp_path):
    def change(answers, _):
        return answers if len(answers) == 2 else ModelAnswer([answers, answers])

    error = refusal(tmp_path, ConfigError, Exporter(change), check=ROWS)
    assert "the model returns 1 outputs for the reference rows, but 2 for validation_data" in str(error)


IDENTITY = onnx_bytes.model(
    [onnx_bytes.node("Identity", ["user"], ["y"])], [("user", "int64", ("n",))], [("y", "int64", ("n",))]
)
CUT = {"age": np.linspace(0, 1, 50, dtype=np.float32)}
"""No number of it is near a boundary."""


def cut_spec():
    return ps.Features({"user": Bucketized([0.305, 0.705, 0.905], column="age")})


def save_cut(tmp_path, **options):
    exporter = Exporter(lambda _, __: None, written=IDENTITY)
    exporter.answer = lambda inputs: ModelAnswer([inputs["user"]])
    return saved(tmp_path, exporter, spec=cut_spec(), probes=CUT, **options)


def test_rows_on_each_boundary_and_a_step_beside_it_are_replayed(tmp_path):
    report = save_cut(tmp_path, check=CUT)
    assert report.rows == 50 + 50 + 9 + 9  # a step in float64, and in float32


def test_a_boundary_in_another_precision_is_found(tmp_path, monkeypatch):
    """Planted in serving: no probe lies between the two boundaries, and rows on a boundary do."""

    def rounded(self):
        narrow = [float(np.float32(number)) for number in (0.305, 0.705, 0.905)]
        return ps.Features({"user": Bucketized(narrow, column="age")}).to_json()

    monkeypatch.setattr(saving, "boundary_tables", lambda *_: [])
    monkeypatch.setattr(Draft, "finish", with_features(rounded))
    save_cut(tmp_path / "unseen")
    monkeypatch.undo()
    monkeypatch.setattr(Draft, "finish", with_features(rounded))
    with pytest.raises(ExportRefused, match=r"input 'user', row 5\d: it is encoded as \d, and was \d in training"):
        save_cut(tmp_path / "seen")


def with_features(to_json):
    """What `Draft.finish` is with a text of the features that is another one."""
    finish = Draft.finish

    class Written:
        def __init__(self, features):
            self.to_json = lambda: to_json(features)

    return lambda self, *, features, **options: finish(self, features=Written(features), **options)


def test_a_column_that_training_reads_in_another_precision_is_found(tmp_path, monkeypatch):
    """Planted in training: a float32 is compared as the float64 of its bits, and a client sends its decimal."""
    monkeypatch.setattr(columns, "widen_all", lambda numbers: numbers.astype(np.float64))
    with pytest.raises(ExportRefused, match=r"input 'user', row \d+: it is encoded as \d, and was \d in training"):
        save_cut(tmp_path)


BESIDE = onnx_bytes.model(
    [onnx_bytes.node("Identity", ["user"], ["y"])],
    [("user", "float32", ("n",)), ("x", "int64", ("n",))],
    [("y", "float32", ("n",))],
)


def test_a_made_row_that_the_model_has_no_answer_to_is_left_out(tmp_path):
    spec = ps.Features({"user": Numeric(column="age"), "x": Bucketized([0.0, 2.0], column="age")})
    exporter = Exporter(written=BESIDE)
    exporter.answer = lambda inputs: ModelAnswer([np.where(inputs["user"] == 2, np.nan, inputs["user"])])
    report = saved(tmp_path, exporter, spec=spec, probes=[{"age": 0.25}, {"age": 0.5}])
    assert report.rows == 2 + 3  # all three beside 2.0 are 2 as float32


def test_ids_that_are_not_checked_are_told(tmp_path):
    heard = Heard()
    spec = ps.Features({"user": Ids(), "shop": Ids(size=3)})
    with pytest.raises(ps.PenstockError):  # the graph is another model's
        saved(tmp_path, Exporter(), spec=spec, probes=[{"user": 7, "shop": 2}], heard=heard)
    assert any(note.startswith("Ids without size are not checked when they are served: user;") for note in heard.notes)


@pytest.mark.parametrize(
    ("doubt", "probes", "check", "told"),
    [
        ("it rounds", 2, None, 2),
        ("it rounds", 1, 298, 299),
        ("it rounds", 2, 298, None),
        ("", 2, None, None),
    ],
)
def test_few_rows_for_a_model_in_doubt_are_told_with_their_number(tmp_path, doubt, probes, check, told):
    exporter, heard = Exporter(), Heard()
    exporter.doubt = doubt
    many = (ROWS * 75)[:check] if check else None
    saved(tmp_path, exporter, probes=ROWS[:probes], check=many, heard=heard)
    notes = [note for note in heard.notes if "are compared" in note]
    words = f"{told} rows are compared, which is few for this model: it rounds; pass all held-out rows as "
    assert notes == ([] if told is None else [f"{words}validation_data, at least 300"])


@pytest.mark.parametrize(
    ("probes", "check", "told"),
    [
        (ROWS[:1], None, True),
        (ROWS[:1] * 3, ROWS[1:2], True),  # the two are never in one batch
        (ROWS[:2], None, False),
        (ROWS[:1], ROWS[:2], False),
        ([ROWS[0], {**ROWS[0], "occupation": 3}], None, False),
    ],
)
def test_it_is_told_where_no_batch_has_two_different_rows(tmp_path, probes, check, told):
    heard = Heard()
    saved(tmp_path, Exporter(), probes=probes, check=check, heard=heard)
    assert any("depend on other rows of the batch cannot be detected" in note for note in heard.notes) is told


def test_save_checks_its_arguments_before_it_looks_at_the_model(tmp_path):
    path = tmp_path / "model"
    fitting = {"features": features(), "reference_rows": ROWS}
    unfitted = ps.Features({"age": ps.features.Numeric(scale="standard")})
    for options, reason in [
        ({"features": {}}, r"features must be a penstock\.Features, got \{\}"),
        ({"features": unfitted}, "features are not fitted: pass the return value of features.fit"),
        ({"name": "a b"}, "a service's name"),
        ({"batch_size": 3}, "there is no 'batch_size' here"),
        ({}, "model is a builtins.object: save takes a torch.nn.Module"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            ps.export.save(object(), path, **{**fitting, **options})
    path.mkdir()
    with pytest.raises(ConfigError, match="exists; an artifact is never overwritten"):
        ps.export.save(object(), path, **fitting)
    assert list(Path(tmp_path).iterdir()) == [path]


# -- for a training run -----------------------------------------------------------------------------------------------


def test_a_run_saves_as_save_does_and_the_manifest_says_its_id(tmp_path, monkeypatch):
    model = object()
    given = []
    monkeypatch.setattr(saving, "exporter_for", lambda *arguments: given.append(arguments) or Exporter())
    arguments = {
        "model": model,
        "features": features(),
        "reference_rows": ROWS[:2],
        "validation_data": ROWS,
        "name": "affairs",
    }
    arguments |= {"outputs": ["probability"], "metadata": {"epochs": 3}}
    report = save_for_run(tmp_path / "affairs", "run-1", arguments)
    manifest = open_artifact(report.path, digest=report.digest).manifest
    assert (manifest.run, manifest.name, manifest.metadata) == ("run-1", "affairs", {"epochs": 3})
    assert (report.path, report.rows) == (tmp_path / "affairs", 6)
    assert given == [(model, features())]
    assert save_for_run(tmp_path / "other", "run-2", {**arguments, "metadata": None}).rows == 6


def test_a_model_that_is_saved_by_itself_has_no_run(tmp_path):
    assert open_artifact(saved(tmp_path, Exporter()).path).manifest.run is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"path": "here"}, "penstock.export.save: there is no 'path' here"),
        ({"batch_size": 3}, "penstock.export.save: there is no 'batch_size' here"),
        ({"features": {}}, r"features must be a penstock\.Features, got \{\}"),
        ({"max_bytes": 0}, "max_bytes must be an integer of at least 1"),
    ],
)
def test_what_a_run_saves_is_checked_as_the_arguments_of_save_are(tmp_path, change, said):
    with pytest.raises(ConfigError, match=said):
        save_for_run(
            tmp_path / "affairs", "run-1", {"model": 1, "features": features(), "reference_rows": ROWS, **change}
        )
    with pytest.raises(ConfigError, match=r"penstock.export.save: missing a required.*argument: 'reference_rows'"):
        save_for_run(tmp_path / "affairs", "run-1", {"model": 1, "features": features()})
    assert list(tmp_path.iterdir()) == []
