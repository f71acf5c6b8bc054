from __future__ import annotations

import json
import os
import resource
import shutil
import stat
from pathlib import Path

import pytest

from penstock.artifact import listed_files, model_directory, publishing, staging
from penstock.artifact.model_directory import find_artifact
from penstock.artifact.opened_artifact import open_artifact
from penstock.artifact.publishing import (
    list_versions,
    prune_versions,
    publish_artifact,
    roll_back,
    version_of_run,
)
from penstock.artifact.staging import new_stage
from penstock.errors import ArtifactInvalid, ConfigError, PublishFailed
from penstock.hosting import folder_lock, synced_files
from penstock.hosting.fault_points import InjectedFault
from saved_artifacts import edit_manifest
from tiny_artifacts import write_artifact, write_tables


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Four artifacts, which no test changes: `saved("a")` is the path of one."""
    folder = tmp_path_factory.mktemp("saved")
    for name in "abcd":
        write_artifact(folder / name, name=name)
    return lambda name: folder / name


@pytest.fixture
def there(tmp_path):
    return tmp_path / "models" / "affairs"


@pytest.fixture
def published(saved, there):
    """Publish artifacts, one after the other: `published("ab")`."""

    def publish(names):
        for name in names:
            publish_artifact(saved(name), there)

    return publish


def digest_of(artifact):
    return (artifact / "DIGEST").read_text().strip()


def files_of(folder):
    """All below a folder with its content; of the lock, that it is there: its content is who had it last."""
    found = {}
    for path in sorted(folder.rglob("*")) if folder.exists() else ():
        if path.is_symlink():
            found[path.relative_to(folder)] = str(path.readlink())
        elif path.is_file():
            found[path.relative_to(folder)] = b"" if path.name == ".lock" else path.read_bytes()
        elif not any(path.iterdir()):
            found[path.relative_to(folder)] = None
    return found


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def current(model_dir):
    return json.loads((model_dir / "CURRENT").read_bytes())


# -- publish ----------------------------------------------------------------------------------------------------------


def test_the_first_artifact_is_version_1_and_the_folder_is_made(saved, there):
    done = publish_artifact(saved("a"), there)
    assert (done.version, done.repeated, done.digest, done.current) == (1, False, digest_of(saved("a")), 1)
    assert files_of(there / "versions" / "1") == files_of(saved("a"))
    record = current(there)
    assert (record["version"], record["digest"]) == (1, digest_of(saved("a")))
    assert [(entry["version"], entry["action"]) for entry in record["history"]] == [(1, "publish")]
    assert names_in(there) == [".lock", "CURRENT", "versions"]
    assert names_in(there / "versions") == ["1"]


def test_the_next_is_version_2_and_leaves_the_first_as_it_was(saved, there, published):
    published("a")
    before = files_of(there / "versions")
    assert publish_artifact(saved("b"), there).version == 2
    after = files_of(there / "versions")
    assert {path: after[path] for path in before} == before
    assert current(there)["version"] == 2


def test_an_artifact_that_is_there_is_not_published_again(saved, there, published):
    published("ab")
    before = files_of(there)
    done = publish_artifact(saved("a"), there)
    assert (done.version, done.repeated, done.digest, done.current) == (1, True, digest_of(saved("a")), 2)
    assert files_of(there) == before


def test_a_version_itself_may_be_published_again(published, there):
    published("a")
    assert publish_artifact(there / "versions" / "1", there).version == 1


def test_a_version_that_was_altered_is_not_answered(published, there):
    published("a")
    (there / "versions" / "1" / "model.onnx").write_bytes(b"altered")
    before = files_of(there)
    with pytest.raises(
        ArtifactInvalid, match=r"version 1 was changed after it was published.*nothing was changed"
    ) as caught:
        published("a")
    assert caught.value.file == "model.onnx"
    assert files_of(there) == before


def test_a_damaged_current_version_keeps_nobody_from_publishing_or_going_back(saved, there, published):
    published("ab")
    (there / "versions" / "2" / "model.onnx").unlink()
    assert publish_artifact(saved("c"), there).version == 3
    (there / "versions" / "3" / "model.onnx").unlink()
    assert roll_back(there, 1).version == 1


DAMAGES = pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: (path / "model.onnx").write_bytes(b"x"), "model.onnx has 1 bytes"),
        (lambda path: (path / "model.onnx").unlink(), "model.onnx is missing"),
        (lambda path: (path / "more").write_bytes(b""), "more is a file that the manifest does not list"),
        (lambda path: (path / "DIGEST").write_bytes(b"x"), "DIGEST must contain 64"),
    ],
)


@DAMAGES
def test_an_artifact_that_is_not_as_it_was_saved_is_refused(saved, there, published, tmp_path, damage, said):
    artifact = tmp_path / "artifact"
    shutil.copytree(saved("b"), artifact)
    damage(artifact)
    published("a")
    before = files_of(there)
    with pytest.raises(ArtifactInvalid, match=f"{artifact}.*{said}.*nothing was changed"):
        publish_artifact(artifact, there)
    assert files_of(there) == before


@DAMAGES
def test_an_artifact_that_was_altered_is_refused_also_where_it_is_a_version_already(
    saved, there, published, tmp_path, damage, said
):
    artifact = tmp_path / "artifact"
    shutil.copytree(saved("a"), artifact)
    damage(artifact)
    published("ab")
    before = files_of(there)
    with pytest.raises(ArtifactInvalid, match=f"{artifact}.*{said}.*nothing was changed"):
        publish_artifact(artifact, there)
    assert files_of(there) == before


class HalfOfIt:
    """As `copy_file_range`, but from the second call on it copies no more."""

    def __init__(self):
        self.calls, self.real = 0, os.copy_file_range

    def __call__(self, source, target, size):
        self.calls += 1
        return self.real(source, target, size // 2) if self.calls == 1 else 0


@pytest.mark.parametrize("why", [*sorted(listed_files.NOT_BY_KERNEL), "half", "absent"])
def test_what_the_kernel_does_not_copy_is_copied_all_the_same(saved, there, monkeypatch, why):
    def refuse(*_):
        raise OSError(why, os.strerror(why))

    if why == "absent":
        monkeypatch.delattr(os, "copy_file_range")
    else:
        monkeypatch.setattr(os, "copy_file_range", HalfOfIt() if why == "half" else refuse)
    publish_artifact(saved("a"), there)
    assert files_of(there / "versions" / "1") == files_of(saved("a"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: os.truncate(path, path.stat().st_size + 1), "grows while it is read"),
        (lambda path: os.truncate(path, 10), "has 10 bytes, but the manifest lists"),
    ],
)
def test_a_file_that_changes_while_it_is_copied_is_refused(saved, there, tmp_path, monkeypatch, change, words):
    artifact, copy = shutil.copytree(saved("a"), tmp_path / "artifact"), os.copy_file_range

    def change_first(source, target, size):
        change(Path(f"/proc/self/fd/{source}").readlink())
        return copy(source, target, size)

    monkeypatch.setattr(os, "copy_file_range", change_first)
    with pytest.raises(ArtifactInvalid, match=f"{artifact} is not a valid artifact.*{words}.*nothing was changed"):
        publish_artifact(artifact, there)
    assert not (there / "CURRENT").exists()


ROWS_FILE = "tables/user/shard-00003-of-00008.safetensors"


def spoil_rows(artifact):
    """Give a shard another row, which its size and its header do not tell."""
    with (artifact / ROWS_FILE).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x40")


@pytest.fixture
def with_tables(tmp_path):
    """Two artifacts with tables outside of their graphs."""
    for scale in (1.0, 2.0):
        write_tables(tmp_path / f"tables{scale:.0f}", scale=scale)
    return tmp_path / "tables1", tmp_path / "tables2"


def test_altered_rows_are_not_published(with_tables, there):
    artifact, _ = with_tables
    spoil_rows(artifact)
    with pytest.raises(
        ArtifactInvalid, match=f"{artifact} is not a valid artifact.*{ROWS_FILE} was changed after it was saved"
    ):
        publish_artifact(artifact, there)


@pytest.mark.parametrize("spoilt", ["artifact", "version"])
def test_altered_rows_are_told_where_the_artifact_is_a_version_already(with_tables, there, spoilt):
    artifact, _ = with_tables
    publish_artifact(artifact, there)
    spoil_rows(artifact if spoilt == "artifact" else there / "versions" / "1")
    with pytest.raises(ArtifactInvalid, match=f"{ROWS_FILE} was changed after it was saved.*nothing was changed"):
        publish_artifact(artifact, there)


def test_a_version_that_was_never_published_and_has_altered_rows_is_replaced(with_tables, there):
    first, second = with_tables
    publish_artifact(first, there)
    shutil.copytree(second, there / "versions" / "2")
    spoil_rows(there / "versions" / "2")
    assert publish_artifact(second, there).version == 2
    assert open_artifact(there / "versions" / "2", verify_rows=True).digest == digest_of(second)


def test_a_rollback_reads_no_rows(with_tables, there):
    for artifact in with_tables:
        publish_artifact(artifact, there)
    spoil_rows(there / "versions" / "1")
    assert roll_back(there).version == 1
    assert list_versions(there).current == 1


def test_a_copy_that_is_not_as_its_artifact_is_refused(published, there, monkeypatch):
    published("a")
    before = files_of(there)
    sync = synced_files.sync_tree

    def spoil(folder):
        sync(folder)
        (folder / "model.onnx").write_bytes(b"x")

    monkeypatch.setattr("penstock.artifact.copying.sync_tree", spoil)
    with pytest.raises(ArtifactInvalid, match=r"model.onnx has 1 bytes.*nothing was changed"):
        published("b")
    assert files_of(there) == before


def lost(there):
    (there / "CURRENT").unlink()


def old(there):
    record = current(there)
    record["history"] = record["history"][:1]
    record |= {"version": 1, "digest": record["history"][0]["digest"]}
    (there / "CURRENT").write_text(json.dumps(record))


DAMAGE = {
    "not valid JSON": (lambda there: (there / "CURRENT").write_bytes(b"{"), "CURRENT: "),
    "half": (lambda there: (there / "CURRENT").write_bytes((there / "CURRENT").read_bytes()[:99]), "CURRENT: "),
    "too long": (lambda there: os.truncate(there / "CURRENT", 17 << 20), "CURRENT has more than 16777216 bytes"),
    "lost": (lost, "CURRENT is missing, but version 3 exists: restore the right CURRENT"),
    "old": (old, "CURRENT lists 1 versions, but version 3 exists: restore the right CURRENT"),
    "nought": (lambda there: (there / "versions" / "0").mkdir(), "versions/0 is not a directory of a version"),
    "a file": (lambda there: (there / "versions" / "4").write_bytes(b""), "versions/4 is not a directory of a version"),
    "a link": (lambda there: (there / "versions" / "4").symlink_to("3"), "versions/4 is not a directory of a version"),
    "zeros": (lambda there: (there / "versions" / "04").mkdir(), "versions/04 is not a directory of a version"),
    "digits": (
        lambda there: (there / "versions" / ("4" * 19)).mkdir(),
        f"versions/{'4' * 19} is not a directory of a version",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_directory_that_is_not_as_it_was_left_is_told_and_not_changed(published, there, damage):
    published("abc")
    make, said = DAMAGE[damage]
    make(there)
    before = files_of(there)
    with pytest.raises(ArtifactInvalid, match=f"{there}.*{said}.*nothing was changed$"):
        published("d")
    with pytest.raises(ArtifactInvalid):
        prune_versions(there, 1)
    assert files_of(there) == before


FOREIGN = [
    *(".DS_Store", ".nfs0000000000000001", "lost+found", "@eaDir", "System Volume Information", "$RECYCLE.BIN"),
    *("__MACOSX", "#snapshot", "Icon\r", "README.md", "latest", "v3", "mine", "1.bak", "1 (copy)", "2.tmp", "3~", "-1"),
    *("\u0663", "\x1b[2J", "1\n"),
]


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("3")])
def test_a_name_that_is_no_number_is_nobodys_version_stops_nobody_and_stays(published, there, make):
    published("abc")
    for name in FOREIGN:
        make(there / "versions" / name)
    published("d")
    assert prune_versions(there, 1) == (1, 2)
    assert names_in(there / "versions") == sorted(["3", "4", *FOREIGN])


@pytest.mark.parametrize("name", ["mine", "4"])
def test_what_else_is_among_the_versions_keeps_nobody_from_going_back(published, there, name):
    published("ab")
    (there / "versions" / name).write_bytes(b"")
    assert roll_back(there).version == 1


@pytest.mark.parametrize("change", [roll_back, lambda there: publish_artifact(there.parent / "c", there)])
def test_current_stays_readable_for_whoever_could_read_it(saved, there, published, umask, change):
    published("ab")
    shutil.copytree(saved("c"), there.parent / "c")
    (there / "CURRENT").chmod(0o664)
    umask(0o077)
    change(there)
    assert stat.S_IMODE((there / "CURRENT").stat().st_mode) == 0o664


def closed(folder):
    """What in a model directory cannot be read by everybody, the stages of killed processes aside."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.stat().st_mode & 0o5 != (0o5 if path.is_dir() else 0o4)
    ]


def test_whoever_reads_the_model_directory_reads_all_that_is_published_there_whatever_the_umask(
    there, published, umask
):
    there.mkdir(parents=True)
    there.chmod(0o755)
    umask(0o077)
    published("ab")
    assert closed(there) == []


def test_a_version_that_was_published_for_its_user_alone_can_be_read_by_others_when_it_is_gone_back_to(
    there, published, umask
):
    umask(0o077)
    published("ab")
    for path, mode in ((there, 0o755), (there / "versions", 0o755), (there / "CURRENT", 0o644)):
        path.chmod(mode)
    roll_back(there)
    assert [path for path in closed(there) if not path.startswith("versions/2")] == []


def test_where_somebody_could_not_read_the_version_nothing_is_changed(there, published, monkeypatch):
    published("a")
    before = files_of(there)

    def refuse(*_):
        raise PermissionError(1, "the group cannot be given")

    monkeypatch.setattr(staging, "share_tree", refuse)
    with pytest.raises(PublishFailed, match="was not changed: the group cannot be given"):
        published("b")
    assert files_of(there) == before


def test_the_first_current_has_the_mode_that_the_umask_says(published, there, umask):
    umask(0o027)
    published("a")
    assert stat.S_IMODE((there / "CURRENT").stat().st_mode) == 0o640


# -- where it may not be ----------------------------------------------------------------------------------------------


def test_a_file_is_no_model_directory(saved, tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(ConfigError, match="file is not a directory, so it cannot be a model directory"):
        publish_artifact(saved("a"), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_an_artifact_is_no_model_directory(saved, tmp_path):
    write_artifact(tmp_path / "other", name="other")
    before = files_of(tmp_path)
    for model_dir in (tmp_path / "other", tmp_path / "other" / "models"):
        with pytest.raises(ConfigError, match=r"is an artifact; give|would be inside the artifact"):
            publish_artifact(tmp_path / "other", model_dir)
    with pytest.raises(ConfigError, match="is an artifact; give"):
        publish_artifact(saved("a"), tmp_path / "other")
    assert files_of(tmp_path) == before


def test_a_model_directory_is_no_artifact(published, there, tmp_path):
    published("a")
    said = (
        f"^{there} is a model directory with the current version {there}/versions/1: give the directory of an artifact$"
    )
    with pytest.raises(ConfigError, match=said):
        publish_artifact(there, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_an_artifact_among_the_versions_that_is_none_is_refused(saved, there, published):
    published("a")
    shutil.copytree(saved("b"), there / "versions" / ".stage-0123456789abcdef" / "model")
    with pytest.raises(ConfigError, match="is among the versions of"):
        publish_artifact(there / "versions" / ".stage-0123456789abcdef" / "model", there)


def test_a_model_directory_may_be_reached_through_a_link(saved, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert publish_artifact(saved("a"), tmp_path / "link").version == 1
    assert find_artifact(tmp_path / "link").version == 1
    assert (tmp_path / "real" / "versions" / "1").is_dir()


def test_a_model_directory_alters_no_artifact_and_no_other_model_directory(saved, there, published, tmp_path):
    published("a")
    shutil.copytree(saved("b"), tmp_path / "artifact")
    (tmp_path / "link").symlink_to(there / "versions")
    before = files_of(tmp_path)
    for inside in (tmp_path / "artifact" / "models", tmp_path / "artifact" / "more" / "models"):
        with pytest.raises(ConfigError, match=f"would be inside the artifact {tmp_path}/artifact"):
            publish_artifact(saved("c"), inside)
    for among in (
        there / "versions",
        there / "versions" / "2",
        there / "versions" / "mine" / "x",
        tmp_path / "link" / "2",
    ):
        with pytest.raises(ConfigError, match=f"would be among the versions of the model directory {there}"):
            publish_artifact(saved("c"), among)
    with pytest.raises(ConfigError, match="would be inside the artifact"), new_stage(there / "versions" / "1" / "x"):
        pass
    assert files_of(tmp_path) == before


def test_links_in_a_circle_lead_to_no_model_directory(saved, tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    there = tmp_path / "circle" / "models"
    said = f"^{there} cannot be reached: Too many levels of symbolic links$"
    with pytest.raises(ConfigError, match=said):
        publish_artifact(saved("a"), there)
    with pytest.raises(ConfigError, match=said), new_stage(there):
        pass


def test_a_relative_path_needs_a_working_directory_that_is_there(saved, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    changes = [lambda path: publish_artifact(saved("a"), path), lambda path: new_stage(path).__enter__()]
    for change in (*changes, roll_back, lambda path: prune_versions(path, 1), list_versions):
        with pytest.raises(
            ConfigError, match=r"^model_dir is 'models', but the working directory does not exist any more"
        ):
            change("models")
    assert publish_artifact(saved("a"), tmp_path / "models").version == 1


# -- a version that is a link, or that cannot be read ------------------------------------------------------------------


def test_a_version_that_is_a_link_is_nowhere_a_version(published, there, tmp_path):
    published("ab")
    for number in "12":
        (there / "versions" / number).rename(tmp_path / number)
        (there / "versions" / number).symlink_to(tmp_path / number)
    said = f"{there}/versions/%s must be a directory of a version, not a link"
    with pytest.raises(ArtifactInvalid, match=said % 2):
        find_artifact(there)
    for number in (1, 2):
        with pytest.raises(ArtifactInvalid, match=said % number):
            roll_back(there, number)
    with pytest.raises(ConfigError, match="no version to roll back to"):
        roll_back(there)
    assert [version.there for version in list_versions(there).versions] == [False, False]


def test_versions_that_are_a_link_are_those_of_nobody(saved, there, published, tmp_path):
    """Two model directories that share their versions have two locks and two files `CURRENT`."""
    published("abc")
    stage = there / "versions" / f".stage-{'0' * 16}"
    stage.mkdir()
    other = tmp_path / "other"
    other.mkdir()
    (other / "versions").symlink_to(there / "versions")
    said = f"^{other}/versions must be a directory of versions, not a link; nothing was changed$"
    for record in (False, True):
        if record:
            shutil.copy(there / "CURRENT", other)
        changes = [lambda: publish_artifact(saved("d"), other), lambda: stage_and_publish(other, "r1")]
        changes += [lambda: roll_back(other), lambda: roll_back(other, 1), lambda: prune_versions(other, 1)] * record
        before = files_of(tmp_path)
        for change in changes:
            with pytest.raises(ArtifactInvalid, match=said):
                change()
        assert files_of(tmp_path) == before
    for read in (find_artifact, list_versions):
        with pytest.raises(ArtifactInvalid, match=f"^{other}/versions must be a directory of versions, not a link$"):
            read(other)


def test_versions_that_cannot_be_read_are_told(published, there, monkeypatch):
    published("a")
    refused(monkeypatch, os, "scandir", lambda path, *_: path == there / "versions")
    with pytest.raises(ArtifactInvalid, match=f"^{there}/versions cannot be read: Permission denied$"):
        list_versions(there)
    refused(monkeypatch, os.path, "realpath", lambda path, *_: True)
    refused(monkeypatch, Path, "lstat", lambda path, *_: path.parent == there / "versions")
    assert find_artifact(there).version == 1
    with pytest.raises(ArtifactInvalid, match=f"^{there}/versions/1 cannot be opened: Permission denied$"):
        open_artifact(there / "versions" / "1")


def test_a_version_that_is_pruned_while_it_is_opened_is_not_the_current_one_any_more(
    saved, there, published, monkeypatch
):
    published("ab")
    roll_back(there)
    open_as_it_is = model_directory.open_artifact

    def prune_first(path, **given):
        monkeypatch.undo()
        shutil.rmtree(there / "versions" / "1")
        (there / "CURRENT").write_bytes(newer)
        return open_as_it_is(path, **given)

    older = (there / "CURRENT").read_bytes()
    roll_back(there, 2)
    newer = (there / "CURRENT").read_bytes()
    (there / "CURRENT").write_bytes(older)
    monkeypatch.setattr(model_directory, "open_artifact", prune_first)
    found, artifact = model_directory.open_found(there)
    assert (found.version, artifact.digest) == (2, digest_of(saved("b")))
    (there / "CURRENT").write_bytes(older)
    with pytest.raises(ArtifactInvalid, match="the directory does not exist"):
        model_directory.open_found(there)


# -- what killed processes leave --------------------------------------------------------------------------------------


def left_in_between(saved, there, name, **changes):
    """What a process leaves that is killed between the two renames: a version that `CURRENT` does not know."""
    record = (there / "CURRENT").read_bytes() if there.exists() else None
    if changes:
        artifact = there.parent / "left"
        write_artifact(artifact, name=name, **changes)
    else:
        artifact = saved(name)
    publish_artifact(artifact, there)
    if record is None:
        stage = there / "versions" / f".stage-{'0' * 16}"
        stage.mkdir()
        (there / "CURRENT").rename(stage / "CURRENT")
    else:
        (there / "CURRENT").write_bytes(record)


@pytest.mark.parametrize("earlier", ["", "a", "ab"])
def test_the_same_artifact_is_finished(saved, there, published, earlier):
    published(earlier)
    left_in_between(saved, there, "c")
    place = there / "versions" / str(len(earlier) + 1)
    inode = place.stat().st_ino
    done = publish_artifact(saved("c"), there)
    assert (done.version, done.repeated, done.digest) == (len(earlier) + 1, False, digest_of(saved("c")))
    assert place.stat().st_ino == inode
    assert len(current(there)["history"]) == len(earlier) + 1


@pytest.mark.parametrize("earlier", ["", "a", "ab"])
def test_another_artifact_takes_its_number(saved, there, published, earlier):
    published(earlier)
    left_in_between(saved, there, "c")
    assert publish_artifact(saved("d"), there).version == len(earlier) + 1
    assert files_of(there / "versions" / str(len(earlier) + 1)) == files_of(saved("d"))
    assert names_in(there / "versions") == [str(n + 1) for n in range(len(earlier) + 1)]


def test_the_same_artifact_that_is_not_whole_is_replaced(saved, there, published):
    published("a")
    left_in_between(saved, there, "c")
    (there / "versions" / "2" / "model.onnx").write_bytes(b"half")
    assert publish_artifact(saved("c"), there).version == 2
    assert files_of(there / "versions" / "2") == files_of(saved("c"))


def test_a_version_whose_current_was_lost_is_not_taken_for_one_that_was_never_published(saved, there, published):
    published("a")
    (there / "CURRENT").unlink()
    before = files_of(there)
    said = f"{there}/CURRENT is missing, but version 1 exists: restore CURRENT, or remove .*/versions/1 if it was"
    for artifact in "bc":
        with pytest.raises(ArtifactInvalid, match=f"{said}.*; nothing was changed$"):
            publish_artifact(saved(artifact), there)
        assert files_of(there) == before
    assert publish_artifact(saved("a"), there).version == 1


def of_another(record):
    entry = {**record["history"][0], "digest": "0" * 64}
    return record | {"digest": "0" * 64, "history": [entry]}


def of_a_later_version(record):
    later = {**record["history"][0], "version": 2}
    return record | {"version": 2, "history": [record["history"][0], later]}


OTHER_STAGES = {"of another artifact": of_another, "of a later version": of_a_later_version, "cut": lambda _: None}


@pytest.mark.parametrize("other", OTHER_STAGES)
def test_a_stage_that_does_not_show_that_a_version_was_never_published_lets_nobody_replace_it(
    saved, there, published, other
):
    left_in_between(saved, there, "c")
    staged = there / "versions" / f".stage-{'0' * 16}" / "CURRENT"
    staged.write_text(json.dumps(OTHER_STAGES[other](json.loads(staged.read_bytes()))))
    before = files_of(there)
    with pytest.raises(ArtifactInvalid, match="CURRENT is missing, but version 1 exists"):
        published("d")
    assert {path: content for path, content in files_of(there).items() if path.name != ".lock"} == {
        path: content for path, content in before.items() if path.name != ".lock"
    }


def test_what_was_never_published_is_put_back_where_its_place_cannot_be_taken(saved, there, published, monkeypatch):
    published("a")
    left_in_between(saved, there, "c")
    before = files_of(there / "versions" / "2")
    refused(monkeypatch, Path, "replace", lambda path, *_: path.name == "CURRENT")
    with pytest.raises(PublishFailed):
        published("d")
    assert files_of(there / "versions" / "2") == before


def test_the_new_current_is_on_the_disk_in_its_stage_before_the_version_has_its_place(published, there, monkeypatch):
    synced = []
    sync = staging.sync_folder

    def record(folder):
        synced.append((folder.name.partition("-")[0], (there / "versions" / "1").exists()))
        sync(folder)

    monkeypatch.setattr(staging, "sync_folder", record)
    published("a")
    assert synced == [(".stage", False), ("versions", False), ("versions", True), ("affairs", True)]


def test_a_dead_stage_is_removed_by_whoever_comes_next(saved, there, published):
    published("a")
    for number, after in enumerate([lambda: publish_artifact(saved("b"), there), lambda: roll_back(there)]):
        stage = there / "versions" / f".stage-{number:016x}"
        (stage / "model").mkdir(parents=True)
        (stage / "model" / "half").write_bytes(b"x")
        after()
        assert names_in(there / "versions") == ["1", "2"]


def test_a_stage_that_is_in_use_is_kept(saved, there, published):
    with new_stage(there) as stage:
        published("a")
        assert stage.folder.is_dir()
        shutil.copytree(saved("b"), stage.artifact)
        assert stage.publish().version == 2
    assert names_in(there / "versions") == ["1", "2"]


# -- a training run ---------------------------------------------------------------------------------------------------


def stage_and_publish(there, run, name="a", **given):
    with new_stage(there) as stage:
        write_artifact(stage.artifact, name=name, run=run)
        return stage.publish(run=run, **given)


def test_a_run_publishes_one_version_whatever_it_saves_again(there):
    assert version_of_run(there, "r1") is None
    first = stage_and_publish(there, "r1")
    again = stage_and_publish(there, "r1", name="b")
    assert (first.version, first.repeated) == (1, False)
    assert (again.version, again.repeated, again.digest) == (1, True, first.digest)
    assert stage_and_publish(there, "r2").version == 2
    assert (version_of_run(there, "r1"), version_of_run(there, "r2"), version_of_run(there, "r3")) == (1, 2, None)
    assert [entry.get("run") for entry in current(there)["history"]] == ["r1", "r2"]
    assert open_artifact(there / "versions" / "1").manifest.run == "r1"


def test_a_run_whose_version_was_pruned_has_published_it(there):
    stage_and_publish(there, "r1")
    stage_and_publish(there, "r2")
    shutil.rmtree(there / "versions" / "1")
    assert stage_and_publish(there, "r1").version == 1


def test_a_run_finishes_the_version_of_its_dead_saver_whatever_that_saved(saved, there, published):
    published("a")
    left_in_between(saved, there, "first", run="r1")
    digest = digest_of(there / "versions" / "2")
    done = stage_and_publish(there, "r1", name="second")
    assert (done.version, done.repeated, done.digest) == (2, False, digest)
    assert digest_of(there / "versions" / "2") == digest == current(there)["digest"]


def test_a_run_removes_the_version_of_another_that_was_never_published(saved, there, published):
    published("a")
    left_in_between(saved, there, "first", run="r1")
    done = stage_and_publish(there, "r2", name="second")
    assert (done.version, open_artifact(there / "versions" / "2").manifest.run) == (2, "r2")


class LostInTime(Exception):
    """What a run raises whose saver holds its lease no longer."""


def test_who_may_publish_no_longer_is_asked_under_the_lock_and_changes_nothing(saved, there, published):
    published("a")
    left_in_between(saved, there, "first", run="r1")
    before = files_of(there)

    def refuse():
        with pytest.raises(folder_lock.FolderLocked), folder_lock.folder_lock(there, wait=0.0):
            raise AssertionError("the lock is held")
        raise LostInTime

    with pytest.raises(LostInTime):
        stage_and_publish(there, "r2", check=refuse)
    assert files_of(there) == before


# -- rollback ---------------------------------------------------------------------------------------------------------


def test_a_rollback_goes_back_and_again_and_then_nowhere(saved, there, published):
    published("abc")
    versions = files_of(there / "versions")
    assert [(done.version, done.before) for done in (roll_back(there), roll_back(there))] == [(2, 3), (1, 2)]
    with pytest.raises(ConfigError, match=r"no version to roll back to from version 1; name one \(to\): 3, 2$"):
        roll_back(there)
    assert files_of(there / "versions") == versions
    assert (current(there)["version"], current(there)["digest"]) == (1, digest_of(saved("a")))
    assert [entry["action"] for entry in current(there)["history"]] == ["publish"] * 3 + ["rollback"] * 2


def test_a_rollback_goes_to_any_version_that_is_named(published, there):
    published("abc")
    assert roll_back(there, 1).version == 1
    assert roll_back(there, 3).version == 3
    assert roll_back(there).version == 1


def test_a_rollback_to_the_current_version_changes_nothing(published, there):
    published("ab")
    before = files_of(there)
    done = roll_back(there, 2)
    assert (done.version, done.before) == (2, 2)
    assert files_of(there) == before


@pytest.mark.parametrize("to", [0, -1, 4, 10**30])
def test_a_version_that_is_not_there_is_told(published, there, to):
    published("abc")
    shutil.rmtree(there / "versions" / "2")
    (there / "versions" / "4").mkdir()  # it was never published
    before = files_of(there)
    with pytest.raises(ConfigError, match=f"has no version {to}; versions: 3, 1$"):
        roll_back(there, to)
    assert files_of(there) == before


def test_a_version_that_was_pruned_is_told_with_what_can_be_done(saved, there, published):
    published("abc")
    shutil.rmtree(there / "versions" / "2")
    said = "has no version 2 any more: it was pruned, and its artifact can be published again; versions: 3, 1$"
    with pytest.raises(ConfigError, match=said):
        roll_back(there, 2)
    assert publish_artifact(saved("b"), there).version == 4


def test_where_only_the_current_version_is_there_no_other_is_named(published, there):
    published("a")
    with pytest.raises(ConfigError, match=r"no version to roll back to from version 1; no other version exists$"):
        roll_back(there)


def test_of_many_versions_the_newest_are_named(published, there):
    published("a")
    record = current(there)
    record["history"] += [{**record["history"][0], "version": number} for number in range(2, 31)]
    (there / "CURRENT").write_text(json.dumps({**record, "version": 30}))
    for number in range(2, 31):
        (there / "versions" / str(number)).mkdir()
    with pytest.raises(ConfigError, match=r"versions: 30, 29, .* 12, 11 and 10 older ones$"):
        roll_back(there, 31)


@pytest.mark.parametrize("number", [10**5000, -(10**5000)], ids=["above", "below"])
def test_a_number_of_too_many_digits_to_be_written_is_refused(published, there, number):
    published("a")
    with pytest.raises(ConfigError, match=r"^to must be the number of a version, got one of too many digits$"):
        roll_back(there, number)
    with pytest.raises(ConfigError, match=r"^keep must be an integer of at least 1, got one of too many digits$"):
        prune_versions(there, -abs(number))
    assert prune_versions(there, abs(number)) == ()


@pytest.mark.parametrize("to", ["1", 1.0, True])
def test_what_is_no_number_of_a_version_is_refused(published, there, to):
    published("a")
    with pytest.raises(ConfigError, match="to must be the number of a version"):
        roll_back(there, to)


def test_a_version_that_was_altered_is_not_gone_back_to(published, there):
    published("abc")
    edit_manifest(there / "versions" / "2", lambda found: found.update(name="altered"))
    before = files_of(there)
    with pytest.raises(ArtifactInvalid, match=r"2 was changed after it was published: .*digest is .*nothing was"):
        roll_back(there)
    assert files_of(there) == before
    assert roll_back(there, 1).version == 1


@pytest.mark.parametrize("change", [roll_back, list_versions, lambda there: prune_versions(there, 1)])
def test_a_folder_without_current_has_nothing_to_change(tmp_path, change):
    with pytest.raises(ArtifactInvalid, match=f"{tmp_path} is not a model directory: it has no file CURRENT"):
        change(tmp_path)
    assert list(tmp_path.iterdir()) == []


def meanwhile(monkeypatch, change):
    """Let `change` happen after a rollback has checked its target, which takes a while and is done without the lock."""

    def change_first(folder):
        monkeypatch.undo()
        change()
        return new_stage(folder)

    monkeypatch.setattr(publishing, "new_stage", change_first)


@pytest.mark.parametrize(
    "change", [lambda saved, there: publish_artifact(saved("d"), there), lambda _, there: roll_back(there)]
)
def test_a_rollback_that_names_no_version_is_refused_where_somebody_else_was_quicker(
    saved, there, published, monkeypatch, change
):
    published("abc")
    after = []
    meanwhile(monkeypatch, lambda: after.append((change(saved, there).version, files_of(there))))
    with pytest.raises(ArtifactInvalid, match=r"was changed by another process, and version .* is current") as caught:
        roll_back(there)
    version, files = after[0]
    assert f"version {version} is current now" in str(caught.value)
    assert str(caught.value).endswith("; nothing was changed")
    assert files_of(there) == files


def test_a_rollback_that_names_a_version_goes_there_whatever_is_current(saved, there, published, monkeypatch):
    published("abc")
    meanwhile(monkeypatch, lambda: publish_artifact(saved("d"), there))
    done = roll_back(there, 1)
    assert (done.version, done.before) == (1, 4)
    meanwhile(monkeypatch, lambda: roll_back(there, 2))
    assert roll_back(there, 2) == publishing.Rollback(2, 2)


def test_a_rollback_to_a_version_that_is_pruned_meanwhile_is_refused(published, there, monkeypatch):
    published("abc")
    meanwhile(monkeypatch, lambda: prune_versions(there, 1))
    with pytest.raises(ConfigError, match=r"has no version 1 any more: it was pruned, .*; versions: 3, 2$"):
        roll_back(there, 1)
    assert current(there)["version"] == 3


@pytest.mark.parametrize("damage", [shutil.rmtree, lambda version: (version / "model.onnx").write_bytes(b"x")])
def test_a_rollback_to_the_current_version_checks_it(published, there, damage):
    published("ab")
    damage(there / "versions" / "2")
    before = files_of(there)
    with pytest.raises(ArtifactInvalid, match=r"2 was changed after it was published: .*; nothing was changed$"):
        roll_back(there, 2)
    assert files_of(there) == before


# -- prune and list ---------------------------------------------------------------------------------------------------


def test_old_versions_are_removed_and_what_is_current_and_what_was_before_stay(published, there):
    published("abcd")
    assert prune_versions(there, 9) == ()
    assert prune_versions(there, 1) == (1, 2)
    assert names_in(there / "versions") == ["3", "4"]
    assert roll_back(there).version == 3
    assert prune_versions(there, 1) == ()


def test_pruning_leaves_what_is_no_listed_version_alone(saved, there, published):
    published("ab")
    left_in_between(saved, there, "c")
    assert prune_versions(there, 1) == ()
    assert names_in(there / "versions") == ["1", "2", "3"]


@pytest.mark.parametrize("keep", [0, -1, True, "1", 1.5])
def test_at_least_one_version_is_kept(published, there, keep):
    published("a")
    with pytest.raises(ConfigError, match="keep must be an integer of at least 1"):
        prune_versions(there, keep)


def test_a_version_that_cannot_be_removed_is_told_with_those_that_were(published, there, monkeypatch):
    published("abcd")
    refused(monkeypatch, Path, "rename", lambda path, *_: path.name == "2")
    said = f"{there}: version 1 is pruned, but no others: Permission denied: {there}/versions/2$"
    with pytest.raises(PublishFailed, match=said):
        prune_versions(there, 1)
    assert names_in(there / "versions") == ["2", "3", "4"]
    with pytest.raises(PublishFailed, match=f"{there} was not changed: Permission denied: {there}/versions/2$"):
        prune_versions(there, 1)


def test_the_files_of_a_pruned_version_that_stay_are_told(published, there, monkeypatch):
    published("abcd")
    refused(monkeypatch, os, "unlink", lambda path, *_: path == "model.onnx")
    said = f"{there}: versions 1, 2 are pruned, but {there}/versions/.stage-[0-9a-f]+ cannot be removed: Permission"
    with pytest.raises(PublishFailed, match=said):
        prune_versions(there, 1)
    assert [entry.there for entry in list_versions(there).versions] == [False, False, True, True]
    monkeypatch.undo()
    assert prune_versions(there, 1) == ()
    assert names_in(there / "versions") == ["3", "4"]


@pytest.mark.parametrize(("most", "said"), [(2, "AWAY; AWAY$"), (1, "AWAY; 1 more cannot be removed$")])
def test_all_folders_that_stay_are_told_up_to_some(published, there, monkeypatch, most, said):
    published("abcd")
    refused(monkeypatch, os, "unlink", lambda path, *_: path == "model.onnx")
    monkeypatch.setattr(publishing, "MOST_NAMED", most)
    away = f"{there}/versions/.stage-[0-9a-f]+ cannot be removed: Permission denied: model.onnx"
    with pytest.raises(PublishFailed, match=f"versions 1, 2 are pruned, but {said.replace('AWAY', away)}"):
        prune_versions(there, 1)


def test_a_prune_that_a_loss_of_power_could_undo_says_so(published, there, monkeypatch):
    published("abcd")
    refused(monkeypatch, publishing, "sync_folder", lambda path: path == there / "versions")
    said = f"^{there}: versions 1, 2 are pruned, but a power cut could restore them damaged:"
    with pytest.raises(PublishFailed, match=rf"{said} cannot sync the directory \(Permission denied\)$"):
        prune_versions(there, 1)
    assert names_in(there / "versions") == ["3", "4"]
    with pytest.raises(PublishFailed, match=f"^{there} was not changed: Permission denied"):
        prune_versions(there, 1)


def test_a_prune_makes_no_folder_and_no_file(published, there, monkeypatch):
    """Where a disk is full there is no room for one."""
    published("abc")
    refused(monkeypatch, Path, "mkdir", lambda *_: True)
    refused(monkeypatch, Path, "open", lambda *_: True)
    assert prune_versions(there, 1) == (1,)
    assert names_in(there / "versions") == ["2", "3"]


def test_an_artifact_whose_version_is_pruned_while_it_is_checked_gets_a_new_number(
    saved, there, published, monkeypatch
):
    published("abc")
    check = publishing.open_version

    def prune_first(*given, **more):
        monkeypatch.undo()
        prune_versions(there, 1)
        return check(*given, **more)

    monkeypatch.setattr(publishing, "open_version", prune_first)
    assert publish_artifact(saved("a"), there).version == 4

    def prune_then(*given, **more):
        monkeypatch.undo()
        found = check(*given, **more)
        prune_versions(there, 1)
        return found

    monkeypatch.setattr(publishing, "open_version", prune_then)
    assert publish_artifact(saved("b"), there).version == 5


def test_all_that_was_published_is_listed(saved, there, published):
    published("abc")
    stage_and_publish(there, "r1", name="d")
    roll_back(there, 2)
    shutil.rmtree(there / "versions" / "3")
    found = list_versions(there)
    assert (found.path, found.current, found.rollback_to) == (there, 2, 1)
    assert [(entry.version, entry.run, entry.there) for entry in found.versions] == [
        (1, None, True),
        (2, None, True),
        (3, None, False),
        (4, "r1", True),
    ]
    assert [entry.digest for entry in found.versions[:3]] == [digest_of(saved(name)) for name in "abc"]
    assert [(entry.version, entry.action) for entry in found.history][-2:] == [(4, "publish"), (2, "rollback")]


# -- find -------------------------------------------------------------------------------------------------------------


def test_the_current_version_is_found_and_held_to_its_digest(saved, there, published):
    published("ab")
    digest = digest_of(saved("b"))
    for said in (None, digest):
        found = find_artifact(there, said)
        assert (found.path, found.digest, found.version) == (there / "versions" / "2", digest, 2)
    assert open_artifact(found.path, digest=found.digest).manifest.name == "b"
    with pytest.raises(ArtifactInvalid, match=f"the current version of .* is 2 with the digest {digest}, not 0{{64}}"):
        find_artifact(there, "0" * 64)


@pytest.mark.parametrize("digest", [None, "0" * 64])
def test_what_is_no_model_directory_is_found_as_it_is(saved, tmp_path, digest):
    for path in (saved("a"), tmp_path / "nowhere", saved("a") / "DIGEST"):
        found = find_artifact(path, digest)
        assert (found.path, found.digest, found.version) == (path, digest, None)


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.symlink_to("/dev/null"), os.mkfifo])
def test_a_current_that_is_no_file_is_refused(tmp_path, make):
    make(tmp_path / "CURRENT")
    with pytest.raises(ArtifactInvalid, match=f"{tmp_path} is not a valid model directory: CURRENT"):
        find_artifact(tmp_path)


# -- a system that refuses --------------------------------------------------------------------------------------------


@pytest.fixture
def limit():
    """Let no file be larger than so many bytes: the nearest to a full disk that needs no file system of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("by_kernel", [True, False])
@pytest.mark.parametrize("size", [0, 1, 100, 150, 400, 500, 900, 1500])
def test_a_disk_without_room_changes_nothing_at_whichever_file_it_ends(
    saved, there, published, limit, monkeypatch, size, by_kernel
):
    published("abc")
    if not by_kernel:
        monkeypatch.delattr(os, "copy_file_range")
    before = files_of(there)
    limit(size)
    with pytest.raises(PublishFailed, match=f"{there} was not changed: File too large"):
        published("d")
    limit(-1)
    assert files_of(there) == before
    assert publish_artifact(saved("d"), there).version == 4


@pytest.mark.parametrize("missing", [1, 100, 10_000])
@pytest.mark.parametrize("change", ["publish", "rollback"])
def test_a_disk_without_room_for_current_changes_nothing(saved, there, published, limit, change, missing):
    """A long history makes `CURRENT` the largest file, so all but that has room."""
    published("ab")
    record = current(there)
    record["history"] += [{**record["history"][place % 2], "action": "rollback"} for place in range(100)]
    (there / "CURRENT").write_text(json.dumps(record, indent=1))
    before = files_of(there)
    limit((there / "CURRENT").stat().st_size + 100 - missing)
    with pytest.raises(PublishFailed, match=f"{there} was not changed: File too large"):
        publish_artifact(saved("c"), there) if change == "publish" else roll_back(there)
    limit(-1)
    assert files_of(there) == before
    assert publish_artifact(saved("c"), there).version == 3


def refused(monkeypatch, owner, name, fits):
    """Let a call of the system be refused where `fits` says so of its arguments."""
    real = getattr(owner, name)

    def refuse(*given, **more):
        if fits(*given):
            raise PermissionError(13, "Permission denied", str(given[0]))
        return real(*given, **more)

    monkeypatch.setattr(owner, name, refuse)


SYSTEM = {
    "the folder is not made": (Path, "mkdir", lambda path, *_: path.name == "versions"),
    "the stage is not made": (Path, "mkdir", lambda path, *_: path.name.startswith(".stage-")),
    "the lock is not opened": (os, "open", lambda path, *_: str(path).endswith("affairs/.lock")),
    "the version is not renamed": (Path, "rename", lambda path, *_: path.name == "model"),
    "CURRENT is not replaced": (Path, "replace", lambda path, *_: path.name == "CURRENT"),
}


@pytest.mark.parametrize(
    ("call", "earlier"), [(call, "") for call in SYSTEM] + [(call, "ab") for call in [*SYSTEM][1:]]
)
def test_what_the_system_refuses_is_told_and_nothing_is_changed(saved, there, published, monkeypatch, call, earlier):
    published(earlier)
    before = {path: content for path, content in files_of(there).items() if content is not None}
    refused(monkeypatch, *SYSTEM[call])
    with pytest.raises(PublishFailed, match=f"{there} was not changed: Permission denied: ") as caught:
        published("c")
    assert caught.value.retryable
    monkeypatch.undo()
    after = {path: content for path, content in files_of(there).items() if content is not None}
    assert {path for path in after if path.name != ".lock"} == {path for path in before if path.name != ".lock"}
    assert before.items() <= after.items()
    assert publish_artifact(saved("c"), there).version == len(earlier) + 1


def test_a_folder_of_versions_that_is_a_file_is_told(published, there):
    there.mkdir(parents=True)
    (there / "versions").write_bytes(b"mine")
    with pytest.raises(ArtifactInvalid, match=f"^{there}/versions is not a directory; nothing was changed$"):
        published("a")
    assert (there / "versions").read_bytes() == b"mine"


def test_a_directory_that_cannot_be_synced_afterwards_is_published_and_said_to_be(published, there, monkeypatch):
    published("a")
    refused(monkeypatch, staging, "sync_folder", lambda path: path == there)
    with pytest.raises(PublishFailed, match=f"{there}: version 2 is current now, but a power cut could undo"):
        published("b")
    assert current(there)["version"] == 2


def test_a_lock_that_is_held_for_long_is_told_with_its_holder(published, there, monkeypatch):
    published("a")
    before = files_of(there)
    lock = folder_lock.folder_lock
    monkeypatch.setattr(staging, "folder_lock", lambda folder: lock(folder, wait=0.05))
    with lock(there):
        said = (
            f"{there} was not changed: the lock was not released within 0.05 s; it is held by process {os.getpid()} on "
        )
        with pytest.raises(PublishFailed, match=said):
            published("b")
    assert files_of(there) == before


@pytest.mark.parametrize(
    "change", [lambda saved, there: publish_artifact(saved("c"), there), lambda _, there: roll_back(there)]
)
def test_a_lock_that_is_current_too_changes_nothing(saved, there, published, change):
    published("ab")
    (there / ".lock").unlink()
    (there / ".lock").hardlink_to(there / "CURRENT")
    before = (there / "CURRENT").read_bytes()
    with pytest.raises(PublishFailed, match=rf"{there} was not changed: {there}/\.lock has a second hard link"):
        change(saved, there)
    assert (there / "CURRENT").read_bytes() == before


@pytest.mark.parametrize("state", ["an artifact", "a file", "nothing", "published", "unlistable", "a link", "damaged"])
def test_a_refusal_is_one_line_whatever_the_path_is(saved, tmp_path, state):
    there = tmp_path / "a\nb"
    if state == "an artifact":
        shutil.copytree(saved("a"), there)
    elif state == "a file":
        there.touch()
    elif state != "nothing":
        for name in "ab":
            publish_artifact(saved(name), there)
    if state == "unlistable":
        (there / "CURRENT").write_bytes(b"{")
    elif state == "a link":
        (there / "versions").rename(tmp_path / "versions")
        (there / "versions").symlink_to(tmp_path / "versions")
    elif state == "damaged":
        shutil.rmtree(there / "versions" / "1")
        (there / "versions" / "1").touch()
    changes = [
        lambda: publish_artifact(saved("c"), there),
        lambda: publish_artifact(there, tmp_path / "other"),
        lambda: publish_artifact(saved("c"), there / "versions" / "2" / "more"),
        lambda: roll_back(there, 1),
        lambda: roll_back(there, 7),
        lambda: prune_versions(there, 1),
        lambda: list_versions(there),
        lambda: find_artifact(there, "0" * 64),
        lambda: open_artifact(there / "nothing"),
    ]
    refusals = []
    for change in changes:
        try:
            change()
        except (ArtifactInvalid, ConfigError, PublishFailed) as error:
            refusals.append(str(error))
    assert refusals
    assert [words for words in refusals if not words.isprintable()] == []


POINTS = ["stage_begun", "half_written", "synced", "verified", "version_renamed"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("error", [InjectedFault, KeyboardInterrupt])
@pytest.mark.parametrize("earlier", ["", "a"])
def test_whatever_is_raised_on_the_way_leaves_nothing(saved, there, published, monkeypatch, point, error, earlier):
    published(earlier)
    before = files_of(there / "versions")

    def interrupt(here):
        if here == point:
            raise error

    for module in ("copying", "staging"):
        monkeypatch.setattr(f"penstock.artifact.{module}.hit", interrupt)
    with pytest.raises(error):
        published("b")
    assert files_of(there / "versions") == (before if earlier else {})
    assert (there / "CURRENT").exists() == bool(earlier)
    monkeypatch.undo()
    assert publish_artifact(saved("b"), there).version == len(earlier) + 1


def test_an_interrupt_just_after_current_was_replaced_takes_nothing_back(saved, there, published, monkeypatch):
    published("a")
    replace = Path.replace

    def interrupted(path, target):
        replace(path, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        published("b")
    monkeypatch.undo()
    assert find_artifact(there).version == 2
    open_artifact(there / "versions" / "2", digest=digest_of(saved("b")))
    assert publish_artifact(saved("b"), there).repeated


@pytest.mark.parametrize("renamed", ["model", "1"])
def test_an_interrupt_just_after_a_folder_was_renamed_takes_that_back(saved, there, published, monkeypatch, renamed):
    if renamed == "1":
        left_in_between(saved, there, "a")
        (there / "versions" / f".stage-{'0' * 16}" / ".lock").touch()
    before = files_of(there / "versions")
    rename = Path.rename

    def interrupted(path, target):
        rename(path, target)
        if path.name == renamed:
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        published("b")
    assert files_of(there / "versions") == before
    assert publish_artifact(saved("c"), there).version == 1
    assert files_of(there / "versions" / "1") == files_of(saved("c"))
