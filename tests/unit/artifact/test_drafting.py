from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat

import pytest

from penstock.artifact.drafting import new_artifact
from penstock.artifact.manifest import GraphEntry
from penstock.artifact.opened_artifact import open_artifact
from penstock.errors import ConfigError
from saved_artifacts import ANSWERED, finish
from tiny_artifacts import ROWS, graph, write_artifact


class Interrupted(BaseException):
    """As Ctrl-C is: no Exception."""


def names_in(folder):
    return [path.name for path in folder.iterdir()]


def test_an_artifact_appears_when_it_is_published_and_not_before(tmp_path):
    path = tmp_path / "out" / "affairs"
    with new_artifact(path, name="affairs") as draft:
        assert draft.digest == ""
        (draft.folder / "model.onnx").write_bytes(graph())
        digest = finish(draft)
        assert (draft.folder.parent, draft.digest) == (path.parent, digest)
        assert not path.exists()
        assert draft.publish() == path
        assert path.exists()
    assert names_in(path.parent) == ["affairs"]
    assert open_artifact(path, digest=digest).manifest.batch.max_size == 8


def test_a_finished_draft_is_an_artifact_already(tmp_path):
    with new_artifact(tmp_path / "affairs", name="affairs") as draft:
        (draft.folder / "model.onnx").write_bytes(graph())
        digest = finish(draft)
        assert open_artifact(draft.folder, digest=digest).probe_rows() == ROWS
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("step", ["begun", "written", "finished"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, Interrupted])
def test_whatever_is_raised_leaves_nothing(tmp_path, step, error):
    def save():
        with new_artifact(tmp_path / "affairs", name="affairs") as draft:
            if step != "begun":
                (draft.folder / "model.onnx").write_bytes(graph())
            if step == "finished":
                finish(draft)
            raise error

    with pytest.raises(error):
        save()
    assert names_in(tmp_path) == []


def test_a_body_that_ends_without_publishing_leaves_nothing(tmp_path):
    with new_artifact(tmp_path / "affairs", name="affairs"):
        pass
    assert names_in(tmp_path) == []


def write_file(path):
    path.write_bytes(b"mine")


def link_nowhere(path):
    path.symlink_to("nowhere")


EXISTING = {"file": write_file, "empty folder": lambda path: path.mkdir(), "link to nowhere": link_nowhere}


@pytest.mark.parametrize("make", EXISTING.values(), ids=EXISTING.keys())
def test_a_path_that_exists_is_refused_before_anything_is_written(tmp_path, make):
    path = tmp_path / "affairs"
    make(path)
    with pytest.raises(ConfigError, match="exists; an artifact is never overwritten"), new_artifact(path, name="a"):
        raise AssertionError("the body is not begun")
    assert names_in(tmp_path) == ["affairs"]


def fill_folder(path):
    path.mkdir()
    (path / "mine").write_bytes(b"")


@pytest.mark.parametrize("make", [*EXISTING.values(), fill_folder], ids=[*EXISTING.keys(), "full folder"])
def test_what_appears_meanwhile_at_the_path_is_kept(tmp_path, make):
    path = tmp_path / "affairs"

    def save():
        with new_artifact(path, name="affairs") as draft:
            (draft.folder / "model.onnx").write_bytes(graph())
            finish(draft)
            make(path)
            draft.publish()

    with pytest.raises(ConfigError, match="exists"):
        save()
    assert names_in(tmp_path) == ["affairs"]


def test_of_two_that_save_at_once_the_first_to_publish_wins(tmp_path):
    path = tmp_path / "affairs"
    with new_artifact(path, name="second") as second:
        (second.folder / "model.onnx").write_bytes(graph())
        finish(second)
        first = write_artifact(path, name="first")
        with pytest.raises(ConfigError, match="exists"):
            second.publish()
    assert open_artifact(path).digest == first
    assert names_in(tmp_path) == ["affairs"]


def test_what_a_killed_saver_left_is_removed_by_the_next_for_the_same_path(tmp_path):
    left = tmp_path / f".affairs.draft-{'0' * 16}"
    (left / "reference_rows").mkdir(parents=True)
    (left / "reference_rows" / "rows.json").write_bytes(b"[]")
    with new_artifact(tmp_path / "affairs", name="affairs"):
        assert not left.exists()
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("name", [".other.draft-" + "0" * 16, ".affairs.draft-mine", "affairs.draft-" + "0" * 16])
def test_what_is_no_draft_for_the_same_path_is_kept(tmp_path, name):
    (tmp_path / name).mkdir()
    with new_artifact(tmp_path / "affairs", name="affairs"):
        pass
    assert names_in(tmp_path) == [name]


def test_a_file_and_a_link_that_are_named_as_a_draft_are_kept(tmp_path):
    write_file(tmp_path / f".affairs.draft-{'0' * 16}")
    (tmp_path / "folder").mkdir()
    (tmp_path / f".affairs.draft-{'1' * 16}").symlink_to("folder")
    before = sorted(names_in(tmp_path))
    with new_artifact(tmp_path / "affairs", name="affairs"):
        pass
    assert sorted(names_in(tmp_path)) == before


def test_the_draft_of_a_saver_that_lives_is_kept(tmp_path):
    path = tmp_path / "affairs"
    with new_artifact(path, name="first") as first:
        (first.folder / "model.onnx").write_bytes(graph())
        with new_artifact(path, name="second") as second:
            assert first.folder.is_dir()
            assert second.folder.is_dir()
        finish(first)
        first.publish()
    assert open_artifact(path).manifest.name == "first"
    assert names_in(tmp_path) == ["affairs"]


def test_a_saver_whose_folder_is_removed_before_it_has_the_lock_makes_another(tmp_path, monkeypatch):
    removed = []
    lock = fcntl.flock

    def remove_first(descriptor, operation):
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].rmdir()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with new_artifact(tmp_path / "affairs", name="affairs") as draft:
        assert draft.folder.is_dir()
        assert [draft.folder] != removed
    assert len(removed) == 1
    assert names_in(tmp_path) == []


def test_where_folders_cannot_be_locked_an_artifact_is_saved_and_nothing_is_removed(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)
    left = tmp_path / f".affairs.draft-{'0' * 16}"
    left.mkdir()
    write_artifact(tmp_path / "affairs")
    assert sorted(names_in(tmp_path)) == [left.name, "affairs"]


@pytest.mark.parametrize("size", [0, 1, 100, 140, 150, 200, 500, 880, 1000, 1500])
def test_a_disk_without_room_leaves_nothing_at_whichever_file_it_ends(tmp_path, size):
    """A limit on the size of files is the nearest to it that needs no file system of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_artifact(tmp_path / "affairs")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"metadata": {"at": float("nan")}},
        {"graphs": []},
        {"graphs": [GraphEntry("onnx", "other.onnx", (), ANSWERED)]},
        {"created": "now"},
    ],
)
def test_what_could_not_be_opened_again_is_refused_before_it_is_published(tmp_path, changes):
    def save():
        with new_artifact(tmp_path / "affairs", name="affairs") as draft:
            (draft.folder / "model.onnx").write_bytes(graph())
            finish(draft, **changes)

    with pytest.raises(ConfigError):
        save()
    assert names_in(tmp_path) == []


def test_empty_folders_that_a_framework_leaves_are_removed(tmp_path):
    path = tmp_path / "affairs"
    with new_artifact(path, name="affairs") as draft:
        (draft.folder / "saved_model" / "assets" / "deep").mkdir(parents=True)
        (draft.folder / "saved_model" / "variables").mkdir()
        (draft.folder / "saved_model" / "variables" / "one").write_bytes(b"1")
        (draft.folder / "model.onnx").write_bytes(graph())
        finish(draft)
        draft.publish()
    open_artifact(path)
    assert names_in(path / "saved_model") == ["variables"]


def test_an_artifact_may_be_read_by_whom_the_umask_lets(tmp_path, umask):
    umask(0o027)
    write_artifact(tmp_path / "affairs")
    assert stat.S_IMODE((tmp_path / "affairs").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "affairs" / "manifest.json").stat().st_mode) == 0o640


def test_a_long_name_of_a_folder_has_room_for_its_draft(tmp_path):
    for name in ("n" * 255, "ü" * 127):
        write_artifact(tmp_path / name)
        assert (tmp_path / name / "DIGEST").exists()


def test_the_same_content_has_the_same_digest(tmp_path):
    assert write_artifact(tmp_path / "one") == write_artifact(tmp_path / "two")
    assert write_artifact(tmp_path / "three", max_size=5) != write_artifact(tmp_path / "four")


def test_a_folder_that_somebody_removes_just_after_it_was_made_is_left_to_them(tmp_path, monkeypatch):
    """A sweeper takes the new folder for one that was left: it has the lock before its maker."""
    real, sweeping = fcntl.flock, []

    def sweep_first(descriptor, operation):
        if not sweeping:
            (folder,) = tmp_path.iterdir()
            sweeping.append(os.open(folder, os.O_RDONLY))
            real(sweeping[0], fcntl.LOCK_EX)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    with new_artifact(tmp_path / "affairs", name="affairs") as draft:
        assert draft.folder.is_dir()
    os.close(sweeping[0])
    assert names_in(tmp_path) == []
