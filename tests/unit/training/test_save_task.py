"""The save task: one version for a run, and nothing published by who lost its lease."""

from __future__ import annotations

import pytest

from penstock.artifact.publishing import list_versions, publish_artifact, version_of_run
from penstock.artifact.staging import VersionStage
from penstock.errors import ArtifactInvalid, ConfigError, ExportRefused, LeaseLost, PublishFailed
from penstock.hosting.folder_lock import FolderLocked
from penstock.training import save_task
from penstock.training.save_task import save_and_publish
from tiny_artifacts import write_artifact

ARGUMENTS = {"model": "model", "features": "features", "reference_rows": "rows"}


@pytest.fixture
def saved(monkeypatch):
    """What `save_for_run` was asked for; it writes a tiny artifact."""
    asked = []

    def fake(path, run, arguments):
        asked.append((run, arguments))
        write_artifact(path, name=f"model-{run}")

    monkeypatch.setattr(save_task, "save_for_run", fake)
    return asked


def counts():
    pass


def lost():
    raise LeaseLost("gone")


def left(folder):
    return sorted(path.name for path in (folder / "versions").iterdir())


def test_what_save_returns_is_saved_and_published(tmp_path, saved):
    assert save_and_publish(lambda: ARGUMENTS, "one", str(tmp_path / "models"), check=counts, tell=pytest.fail) == 1
    assert saved == [("one", ARGUMENTS)]
    assert version_of_run(tmp_path / "models", "one") == 1
    assert left(tmp_path / "models") == ["1"]


def test_a_version_that_the_run_has_published_is_its_version_and_save_is_not_called(tmp_path, saved):
    models = tmp_path / "models"
    save_and_publish(lambda: ARGUMENTS, "one", str(models), check=counts, tell=pytest.fail)
    save_and_publish(lambda: ARGUMENTS, "two", str(models), check=counts, tell=pytest.fail)
    dead = models / "versions" / ".stage-0123456789abcdef"
    dead.mkdir()
    before = (models / "CURRENT").read_bytes()
    assert save_and_publish(pytest.fail, "one", str(models), check=counts, tell=pytest.fail) == 1
    assert (models / "CURRENT").read_bytes() == before
    assert left(models) == ["1", "2"]


def test_two_savers_of_a_run_publish_one_version(tmp_path, saved):
    models = str(tmp_path / "models")

    def save():
        assert save_and_publish(lambda: ARGUMENTS, "one", models, check=counts, tell=pytest.fail) == 1
        return ARGUMENTS

    assert save_and_publish(save, "one", models, check=counts, tell=pytest.fail) == 1
    assert left(tmp_path / "models") == ["1"]


def test_who_lost_the_lease_publishes_nothing(tmp_path, saved):
    write_artifact(tmp_path / "before")
    publish_artifact(tmp_path / "before", tmp_path / "models")
    with pytest.raises(LeaseLost):
        save_and_publish(lambda: ARGUMENTS, "one", str(tmp_path / "models"), check=lost, tell=pytest.fail)
    assert list_versions(tmp_path / "models").current == 1
    assert left(tmp_path / "models") == ["1"]


def test_what_save_raises_is_raised_and_leaves_nothing(tmp_path, saved):
    with pytest.raises(ZeroDivisionError):
        save_and_publish(lambda: 1 // 0, "one", str(tmp_path / "models"), check=counts, tell=pytest.fail)
    assert left(tmp_path / "models") == []


def test_what_save_raises_after_the_lease_was_lost_is_a_lost_lease(tmp_path, saved):
    with pytest.raises(LeaseLost):
        save_and_publish(lambda: 1 // 0, "one", str(tmp_path / "models"), check=lost, tell=pytest.fail)


def test_a_model_that_fails_its_proof_publishes_nothing(tmp_path, monkeypatch):
    def refused(path, run, arguments):
        write_artifact(path)
        raise ExportRefused("differs")

    monkeypatch.setattr(save_task, "save_for_run", refused)
    with pytest.raises(ExportRefused):
        save_and_publish(lambda: ARGUMENTS, "one", str(tmp_path / "models"), check=counts, tell=pytest.fail)
    assert left(tmp_path / "models") == []
    assert not (tmp_path / "models" / "CURRENT").exists()


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, r"save must return a dict with the arguments of penstock.export.save, such as .*, got NoneType"),
        (["model"], "got list"),
        ({1: 2}, "got dict"),
        ({"path": "x", "model": 1}, "save returned a path, but the run chooses the path of the model"),
    ],
)
def test_what_save_returns_is_checked(tmp_path, saved, returned, said):
    with pytest.raises(ConfigError, match=said):
        save_and_publish(lambda: returned, "one", str(tmp_path / "models"), check=counts, tell=pytest.fail)
    assert saved == []


def test_a_model_directory_that_cannot_be_read_is_told_before_the_model_is_asked(tmp_path, saved):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "CURRENT").write_text("{")
    with pytest.raises(ArtifactInvalid, match="CURRENT"):
        save_and_publish(pytest.fail, "one", str(tmp_path / "models"), check=counts, tell=pytest.fail)


def test_a_model_that_is_saved_waits_while_another_process_is_stopped_with_the_lock(tmp_path, saved, monkeypatch):
    publish, told = VersionStage.publish, []

    def locked_at_first(stage, **options):
        if not told:
            try:
                raise FolderLocked("the lock was not released within 30 s; it is held by process 7 on here")
            except FolderLocked as error:
                raise PublishFailed(f"models was not changed: {error}") from error
        return publish(stage, **options)

    monkeypatch.setattr(VersionStage, "publish", locked_at_first)
    assert save_and_publish(lambda: ARGUMENTS, "one", str(tmp_path / "models"), check=counts, tell=told.append) == 1
    assert len(saved) == 1
    locked = "models was not changed: the lock was not released within 30 s; it is held by process 7 on here"
    assert told == [f"the model is saved and waits to be published: {locked}"]
