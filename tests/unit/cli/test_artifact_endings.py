"""How the commands about artifacts end where the system does not let them read or write."""

from __future__ import annotations

import errno
import json
import os
import sys
from hashlib import sha256

import pytest

import penstock.export.saving
from penstock.artifact.proof import Proof
from penstock.cli.artifact_shown import show_proof, show_report
from penstock.cli.main import main
from penstock.errors import PenstockError
from penstock.export.saving import ExportReport
from saved_artifacts import edit_manifest
from tiny_artifacts import write_artifact


@pytest.fixture
def artifact(tmp_path):
    write_artifact(tmp_path / "affairs")
    return tmp_path / "affairs"


@pytest.mark.parametrize("file", [None, "/full/a/model.onnx"])
def test_a_disk_that_is_full_while_a_model_is_saved_is_a_sentence(tmp_path, monkeypatch, capsys, file):
    def fail(**_):
        raise OSError(errno.ENOSPC, "No space left on device", file)

    (tmp_path / "trained_here.py").write_text("def made(): return {'model': 1}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(penstock.export.saving, "save", fail)
    assert main(["model", "export", "trained_here:made", "full/a"]) == 1
    said = capsys.readouterr().err
    assert "full/a was not saved: No space left on device" in said
    assert "Traceback" not in said
    assert (file is not None) == ("/full/a/model.onnx" in said)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_stdout_that_is_closed_is_a_sentence(artifact, monkeypatch, capsys, flags):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["model", "inspect", str(artifact), *flags]) == 1
    assert "cannot write to standard output: stdout is closed" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_an_artifact_in_a_folder_whose_name_is_no_unicode_is_looked_at_as_any_other(artifact, capsys, command):
    odd = os.fsdecode(os.fsencode(artifact.parent) + b"/odd\xff")
    artifact.rename(odd)
    assert main(["model", command, odd, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"].endswith("/odd\\xff")
    assert main(["model", command, odd]) == 0


def test_the_digest_of_a_saved_model_can_be_copied_from_a_narrow_terminal(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "40")
    digest = "0123456789abcdef" * 4
    show_report(ExportReport(path=tmp_path, digest=digest, rows=7, max_difference={"probability": 3e-8}), as_json=False)
    output = capsys.readouterr().out
    assert f"digest {digest}\n" in output
    assert "7 rows were replayed" in output
    assert "3e-08" in output


@pytest.mark.parametrize("as_json", [True, False])
def test_a_model_that_was_saved_is_told_where_stdout_takes_nothing(monkeypatch, tmp_path, as_json):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(PenstockError, match="affairs: saved; cannot write to standard output: stdout is closed"):
        show_report(
            ExportReport(path=tmp_path / "affairs", digest="0" * 64, rows=7, max_difference={}), as_json=as_json
        )


@pytest.mark.parametrize(
    ("words", "purpose"),
    [
        (["model", "inspect", "DIR"], "to inspect the artifact of a trained model"),
        (["model", "verify", "DIR"], "to inspect the artifact of a trained model"),
        (["model", "diff", "DIR", "DIR"], "to inspect the artifact of a trained model"),
        (["model", "publish", "DIR", "DIR"], "to inspect the artifact of a trained model"),
        (["model", "list", "DIR"], "to inspect the artifact of a trained model"),
        (["model", "export", "trained_here:made", "DIR"], "to save a trained model"),
    ],
)
def test_without_numpy_a_sentence_says_how_to_install_it(monkeypatch, capsys, words, purpose):
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert main(words) in (1, 2)
    assert capsys.readouterr().err == f"penstock: {purpose} numpy is needed: pip install 'penstock[onnx]'\n"


# -- whoever wrote the artifact is not trusted ------------------------------------------------------------------------

HOSTILE = "\x1b[31m\x07\x9b\u202e\U000e0001имя"
HOSTILE_NAME = r"\x1b[31m\x07\x9b\u202e\U000e0001имя"


def assert_printable(output):
    assert all(map(str.isprintable, output.split("\n")))


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """An artifact with such characters wherever its manifest may have any text."""

    def spoil(found):
        found["libraries"] = {HOSTILE: HOSTILE}
        found["metadata"] = {HOSTILE: [HOSTILE]}
        found["classes"] = [HOSTILE]
        found["git"] = HOSTILE
        found["graphs"][0]["outputs"][0]["name"] = HOSTILE

    monkeypatch.setenv("COLUMNS", "500")
    write_artifact(tmp_path / "hostile")
    edit_manifest(tmp_path / "hostile", spoil)
    return tmp_path / "hostile"


def test_no_text_of_an_artifact_reaches_the_terminal_with_escape_sequences(hostile, capsys):
    assert main(["model", "inspect", str(hostile)]) == 0
    output = capsys.readouterr().out
    assert_printable(output)
    assert f"{HOSTILE_NAME} {HOSTILE_NAME}" in output
    assert f"{HOSTILE_NAME}: float32" in output
    quoted = r"\u001b[31m\u0007\u009b\u202e\udb40\udc01имя"
    assert f'{{"{quoted}":["{quoted}"]}}' in output


def test_json_of_an_artifact_has_escapes_for_what_is_not_printable(hostile, capsys):
    assert main(["model", "inspect", str(hostile), "--json"]) == 0
    output = capsys.readouterr().out
    assert_printable(output)
    assert "имя" in output
    told = json.loads(output)
    assert (told["git"], told["metadata"], told["libraries"]) == (HOSTILE, {HOSTILE: [HOSTILE]}, {HOSTILE: HOSTILE})


def test_a_refusal_repeats_the_texts_of_an_artifact_in_printable_characters(hostile, capsys):
    edit_manifest(hostile, lambda found: found.update({HOSTILE: 1}))
    assert main(["model", "inspect", str(hostile)]) == 1
    said = capsys.readouterr().err
    assert_printable(said)
    assert HOSTILE_NAME in said


def test_the_names_of_features_are_told_in_printable_characters(hostile, capsys):
    spec = (hostile / "features.json").read_text().replace('"age": {', f"{json.dumps(HOSTILE)}: {{")
    (hostile / "features.json").write_text(spec)
    entry = {"sha256": sha256(spec.encode()).hexdigest(), "bytes": len(spec.encode())}
    edit_manifest(hostile, lambda found: found["files"].update({"features.json": entry}))
    assert main(["model", "inspect", str(hostile)]) == 0
    output = capsys.readouterr().out
    assert_printable(output)
    assert f" {HOSTILE_NAME} │ Numeric" in output


def test_what_differs_is_told_in_printable_characters(hostile, artifact, capsys):
    for flags in ([], ["--json"]):
        assert main(["model", "diff", str(artifact), str(hostile), *flags]) == 1
        output = capsys.readouterr().out
        assert_printable(output)
        assert f"library {HOSTILE_NAME}" in output or flags
        assert "имя" in output


def test_a_proof_names_outputs_in_printable_characters(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "500")
    show_proof("a", Proof(rows=3, worst={HOSTILE: 0.0}), as_json=False)
    output = capsys.readouterr().out
    assert_printable(output)
    assert HOSTILE_NAME in output
