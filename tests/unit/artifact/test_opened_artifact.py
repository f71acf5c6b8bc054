"""Every way in which the files of an artifact can be other than they were saved; each is refused by the file's name."""

from __future__ import annotations

import errno
import os
import shutil
from hashlib import sha256
from pathlib import Path

import pytest
from processes import open_files

from penstock.artifact import listed_files
from penstock.artifact.opened_artifact import open_artifact
from penstock.errors import ArtifactInvalid, ConfigError
from saved_artifacts import edit_manifest
from tiny_artifacts import ROWS, write_artifact

FILES = (
    "DIGEST",
    "features.json",
    "manifest.json",
    "model.onnx",
    "reference_rows/inputs/occupation.npy",
    "reference_rows/inputs/x.npy",
    "reference_rows/outputs/probability.npy",
    "reference_rows/rows.json",
)
FOLDERS = ("reference_rows", "reference_rows/inputs", "reference_rows/outputs")


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("artifacts") / "affairs"
    write_artifact(path)
    return path


@pytest.fixture
def artifact(original, tmp_path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "affairs"))


def refusal(artifact, file, **options) -> str:
    with pytest.raises(ArtifactInvalid) as caught:
        open_artifact(artifact, **options)
    assert caught.value.file == file
    return str(caught.value)


def test_an_artifact_as_it_was_saved_is_opened(original):
    found = open_artifact(original)
    assert sorted(path.relative_to(original).as_posix() for path in original.rglob("*") if path.is_file()) == [*FILES]
    assert (found.path, found.trusted) == (original.resolve(), False)
    assert found.digest == (original / "DIGEST").read_text().strip()
    assert found.digest == sha256((original / "manifest.json").read_bytes()).hexdigest()
    assert found.manifest.name == "affairs"
    assert found.probe_rows() == found.probes().rows == ROWS
    assert found.features.encode(ROWS)["x"].tobytes() == found.probes().inputs["x"].tobytes()


# -- one file is not as it was ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_anywhere_is_refused(artifact, file):
    content = (artifact / file).read_bytes()
    places = sorted({*range(0, len(content), max(1, len(content) // 40)), len(content) - 1})
    for place in places:
        for bit in (0x01, 0x80):
            (artifact / file).write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
            # Of a digest with another digit nobody knows whether it or the manifest is wrong.
            with pytest.raises(ArtifactInvalid) as caught:
                open_artifact(artifact)
            assert caught.value.file in ({file, "manifest.json"} if file == "DIGEST" else {file})
            assert file in str(caught.value)
    (artifact / file).write_bytes(content)
    open_artifact(artifact)


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_cut_or_grown_is_refused(artifact, file):
    content = (artifact / file).read_bytes()
    for cut in (0, 1, len(content) // 2, len(content) - 1):
        (artifact / file).write_bytes(content[:cut])
        assert file in refusal(artifact, file)
    (artifact / file).write_bytes(content + b"\0")
    assert file in refusal(artifact, file)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_refused(artifact, file):
    (artifact / file).unlink()
    assert f"{file} is missing" in refusal(artifact, file)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("target", ["itself", "nowhere"])
def test_a_link_in_the_place_of_a_file_is_refused_wherever_it_leads(artifact, file, target, tmp_path):
    (artifact / file).rename(tmp_path / "moved")
    (artifact / file).symlink_to(tmp_path / ("moved" if target == "itself" else "nowhere"))
    assert "is a link: copy the directory with the files that its links point to, with `cp -rL`" in refusal(
        artifact, file
    ).replace(", and should be a file", "")


@pytest.mark.parametrize("file", FILES)
def test_a_pointer_of_git_lfs_in_the_place_of_a_file_is_told_with_how_to_get_the_file(artifact, file):
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"
    (artifact / file).write_text(pointer)
    told = f"{file} is a git-lfs pointer, not the file: get the files with `git lfs pull`"
    assert told in refusal(artifact, file)


@pytest.mark.parametrize("file", FILES)
def test_a_folder_in_the_place_of_a_file_is_refused(artifact, file):
    (artifact / file).unlink()
    (artifact / file).mkdir()
    refusal(artifact, file)


@pytest.mark.parametrize("file", FILES)
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(artifact, file):
    (artifact / file).unlink()
    os.mkfifo(artifact / file)
    refusal(artifact, file)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(artifact, file):
    (artifact / file).chmod(0)
    assert "cannot be read: Permission denied" in refusal(artifact, file)


def test_a_file_more_than_a_process_may_open_is_told_with_the_limit(artifact, monkeypatch):
    real = os.open

    def limited(path, *args, **options):
        if path == "model.onnx":
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", limited)
    assert "cannot be read: Too many open files; raise `ulimit -n`" in refusal(artifact, "model.onnx")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_link_in_the_place_of_a_folder_is_refused(artifact, folder, tmp_path):
    (artifact / folder).rename(tmp_path / "moved")
    (artifact / folder).symlink_to(tmp_path / "moved")
    assert f"{folder} is a link that the manifest does not list" in refusal(artifact, folder)


# -- something is there that should not be ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["more", "reference_rows/more.npy", ".hidden", "reference_rows/inputs/x.npy~"])
def test_a_file_that_is_not_listed_is_refused(artifact, path):
    (artifact / path).write_bytes(b"")
    assert f"{path} is a file that the manifest does not list" in refusal(artifact, path)


@pytest.mark.parametrize("path", ["saved_model", "reference_rows/more", "reference_rows/inputs/x"])
def test_an_empty_folder_that_is_not_listed_is_refused(artifact, path):
    (artifact / path).mkdir()
    assert f"{path} is a folder that the manifest does not list" in refusal(artifact, path)


def test_a_link_and_a_pipe_that_are_not_listed_are_refused(artifact):
    (artifact / "more").symlink_to(artifact / "model.onnx")
    assert "more is a link that the manifest does not list" in refusal(artifact, "more")
    (artifact / "more").unlink()
    os.mkfifo(artifact / "more")
    assert "more is a special file that the manifest does not list" in refusal(artifact, "more")


def test_a_name_that_is_no_text_is_refused(artifact):
    (artifact / os.fsdecode(b"\xff")).write_bytes(b"")
    assert "does not list" in refusal(artifact, "\udcff")


def test_a_name_is_told_in_printable_characters(artifact):
    name = os.fsdecode(b"\xff\x1b[31m\n\xc2\x9b") + "\u202eимя"
    (artifact / name).write_bytes(b"")
    assert refusal(artifact, name).endswith(
        r": \udcff\x1b[31m\n\x9b\u202eимя is a file that the manifest does not list"
    )


# -- the manifest lies ------------------------------------------------------------------------------------------------


def test_a_manifest_that_was_changed_with_its_digest_does_not_hide_a_changed_file(artifact):
    (artifact / "model.onnx").write_bytes(b"other")
    edit_manifest(artifact, lambda found: found["files"]["model.onnx"].update(bytes=5))
    assert "model.onnx was changed after it was saved: its sha256 is" in refusal(artifact, "model.onnx")


@pytest.mark.parametrize("path", ["../outside", "/etc/hostname", "reference_rows/../../outside"])
def test_a_manifest_cannot_list_what_lies_outside(artifact, path):
    content = b"outside"
    (artifact.parent / "outside").write_bytes(content)
    entry = {"sha256": sha256(content).hexdigest(), "bytes": len(content)}
    edit_manifest(artifact, lambda found: found["files"].update({path: entry}))
    assert "is not a valid path inside the artifact" in refusal(artifact, "manifest.json")


def test_a_manifest_of_another_schema_is_refused_by_number(artifact):
    edit_manifest(artifact, lambda found: found.update(schema=7))
    assert "schema 7, but this Penstock reads only schema 1" in refusal(artifact, "manifest.json")


def test_a_manifest_that_is_too_large_is_not_read(artifact):
    with (artifact / "manifest.json").open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no room
    assert f"manifest.json has more than {16 << 20} bytes" in refusal(artifact, "manifest.json")


def test_a_listed_size_is_not_trusted(artifact):
    edit_manifest(artifact, lambda found: found["files"]["model.onnx"].update(bytes=1 << 60))
    assert f"but the manifest lists {1 << 60}" in refusal(artifact, "model.onnx")


def test_a_file_that_grows_while_it_is_read_is_not_read_for_ever(artifact, monkeypatch):
    def check_then_grow(file, path, entry):
        check_size(file, path, entry)
        if path == "model.onnx":
            os.truncate(artifact / path, 4 * listed_files.CHUNK)

    check_size = listed_files._check_size
    monkeypatch.setattr(listed_files, "_check_size", check_then_grow)
    assert "model.onnx grows while it is read" in refusal(artifact, "model.onnx")


def test_features_that_are_not_known_are_refused(artifact):
    content = b'{"schema": 99}'
    (artifact / "features.json").write_bytes(content)
    entry = {"sha256": sha256(content).hexdigest(), "bytes": len(content)}
    edit_manifest(artifact, lambda found: found["files"].update({"features.json": entry}))
    assert "features.json is not a feature spec that this version can read" in refusal(artifact, "features.json")


@pytest.mark.parametrize("change", [{"name": "other"}, {"dtype": "float64"}, {"shape": [3]}])
def test_a_graph_takes_only_what_the_features_give(artifact, change):
    edit_manifest(artifact, lambda found: found["graphs"][0]["inputs"][0].update(change))
    assert "the onnx graph takes" in refusal(artifact, "manifest.json")


def test_a_graph_may_do_without_an_input_that_the_model_does_not_use(artifact):
    edit_manifest(artifact, lambda found: found["graphs"][0]["inputs"].pop(0))
    assert [tensor.name for tensor in open_artifact(artifact).program()["model"].inputs] == ["occupation"]


# -- the digest -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf"], ids=["as it is", "after a byte order mark"])
def test_a_digest_may_have_any_line_end_and_a_byte_order_mark(artifact, begin, end):
    digest = (artifact / "DIGEST").read_bytes().rstrip()
    (artifact / "DIGEST").write_bytes(begin + digest + end)
    assert open_artifact(artifact).digest == digest.decode()


def test_an_artifact_is_trusted_where_that_is_said(original):
    digest = (original / "DIGEST").read_text().strip()
    assert not open_artifact(original, digest=digest).trusted  # as `CURRENT` may be where the digest is from
    assert open_artifact(original, trust=True).trusted


def test_another_digest_than_the_expected_one_is_refused_and_both_are_said(original):
    digest, other = (original / "DIGEST").read_text().strip(), "0" * 64
    assert f"its digest is {digest}, but {other} is expected" in refusal(original, "DIGEST", digest=other)


@pytest.mark.parametrize("digest", ["", "abc", "G" * 64, "A" * 64, "0" * 65])
def test_what_is_no_digest_is_a_wrong_option(original, digest):
    with pytest.raises(ConfigError, match="digest must be the 64 hexadecimal digits"):
        open_artifact(original, digest=digest)


# -- the folder itself ------------------------------------------------------------------------------------------------


def test_a_path_that_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    (tmp_path / "empty").mkdir()
    assert "the directory does not exist" in refusal(tmp_path / "nothing", "")
    assert "it is not a directory" in refusal(tmp_path / "file", "")
    assert "the directory does not exist" in refusal(tmp_path / "round", "")
    assert "manifest.json is missing" in refusal(tmp_path / "empty", "manifest.json")


def test_a_link_to_the_artifact_is_resolved_once(original, artifact, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(artifact)
    found = open_artifact(link)
    link.unlink()
    link.symlink_to(tmp_path)
    assert found.path == artifact.resolve()
    assert found.probe_rows() == ROWS


def test_what_is_changed_after_it_was_opened_is_found_when_it_is_read(artifact):
    found = open_artifact(artifact)
    content = (artifact / "model.onnx").read_bytes()
    assert found.read("model.onnx") == content
    (artifact / "model.onnx").write_bytes(content[:-1] + b"\0")
    with pytest.raises(ArtifactInvalid, match=r"model.onnx was changed after it was saved"):
        found.read("model.onnx")
    with pytest.raises(ArtifactInvalid, match=r"manifest.json is not listed"):
        found.read("manifest.json")


# -- what was checked before ------------------------------------------------------------------------------------------


@pytest.fixture
def settled(artifact):
    """An artifact that was written an hour ago."""
    for path in artifact.rglob("*"):
        os.utime(path, (1e9, 1e9))
    return artifact


@pytest.fixture
def hashed(monkeypatch):
    """How many bytes of listed files were hashed, each time that it is asked."""
    counted = []

    class Counting:
        def __init__(self, content=b""):
            self.digest = sha256()
            self.update(content)

        def update(self, content):
            counted.append(len(content))
            self.digest.update(content)

        def hexdigest(self):
            return self.digest.hexdigest()

    def count():
        total = sum(counted)
        counted.clear()
        return total

    monkeypatch.setattr(listed_files, "sha256", Counting)
    return count


def test_files_that_another_process_has_checked_are_not_hashed_again(settled, hashed):
    found = open_artifact(settled)
    assert hashed() == sum(entry.bytes for entry in found.manifest.files.values()), "each once"
    again = open_artifact(settled, digest=found.digest, seen=found.seen)
    assert again.read("model.onnx") == found.read("model.onnx") == (settled / "model.onnx").read_bytes()
    assert again.probes().rows == ROWS
    assert (again.seen, hashed()) == (found.seen, 0)


def rewritten(path):
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    os.utime(path, (1e9, 1e9))


def replaced(path):
    path.with_name("other").write_bytes(path.read_bytes()[:-1] + b"!")
    os.utime(path.with_name("other"), (1e9, 1e9))
    path.with_name("other").rename(path)


@pytest.mark.parametrize("alter", [rewritten, replaced])
def test_a_file_of_another_content_is_hashed_whatever_its_time_says(settled, alter):
    found = open_artifact(settled)
    alter(settled / "model.onnx")
    with pytest.raises(ArtifactInvalid, match=r"model.onnx was changed after it was saved"):
        found.read("model.onnx")
    assert "model.onnx was changed after it was saved" in refusal(
        settled, "model.onnx", digest=found.digest, seen=found.seen
    )


def test_a_copy_of_what_was_checked_is_hashed_and_opened(settled, hashed, tmp_path):
    found = open_artifact(settled)
    copy = shutil.copytree(settled, tmp_path / "copy")
    hashed()
    assert open_artifact(copy, digest=found.digest, seen=found.seen).digest == found.digest
    assert hashed() >= sum(entry.bytes for entry in found.manifest.files.values())


def test_a_file_that_is_not_listed_is_refused_also_where_all_others_were_checked(settled):
    found = open_artifact(settled)
    (settled / "more").write_bytes(b"")
    assert "more is a file that the manifest does not list" in refusal(settled, "more", seen=found.seen)


def test_a_file_that_was_just_written_is_hashed_again(settled, hashed):
    (settled / "model.onnx").touch()
    found = open_artifact(settled)
    assert (found.seen, "model.onnx" in found.stamps) == ("", False)
    hashed()
    assert len(found.read("model.onnx")) == hashed()


@pytest.mark.parametrize("link", ["reference_rows/rows.json", "reference_rows"])
def test_a_link_that_appears_after_it_was_opened_is_not_followed(artifact, link, tmp_path):
    found = open_artifact(artifact)
    assert found.probe_rows() == ROWS
    (artifact / link).rename(tmp_path / "moved")
    (artifact / link).symlink_to(tmp_path / "moved")
    with pytest.raises(ArtifactInvalid, match=r"reference_rows/rows.json cannot be read"):
        found.probe_rows()


def test_a_process_that_opens_no_graph_may_leave_the_files_unchecked_but_not_those_it_reads(artifact):
    (artifact / "model.onnx").write_bytes(b"")
    (artifact / "reference_rows" / "rows.json").write_bytes(b"[]")
    found = open_artifact(artifact, check_files=False)
    with pytest.raises(ArtifactInvalid, match=r"reference_rows/rows.json has 2 bytes"):
        found.probe_rows()


def test_a_format_that_was_not_saved_is_refused_with_those_that_were(original):
    assert open_artifact(original).program("onnx") == open_artifact(original).program()
    with pytest.raises(ConfigError, match="has no graph of the format 'pt2', but 'onnx'"):
        open_artifact(original).program("pt2")


def test_no_descriptor_stays_open_whatever_is_found(artifact):
    before = open_files()
    open_artifact(artifact).probes()
    assert open_files() <= before
    for path in ("reference_rows/inputs/more", "reference_rows/outputs/more"):
        (artifact / path).mkdir()
        refusal(artifact, path)
        (artifact / path).rmdir()
        assert open_files() <= before
    (artifact / "reference_rows" / "rows.json").unlink()
    (artifact / "reference_rows" / "rows.json").symlink_to("nowhere")
    refusal(artifact, "reference_rows/rows.json")
    assert open_files() <= before
