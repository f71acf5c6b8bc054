from __future__ import annotations

import os
import stat
import struct

import pytest

from penstock.hosting import file_rights
from penstock.hosting.file_rights import hidden_from, keep_rights, share, share_tree


@pytest.fixture
def files(tmp_path):
    """Two files of other rights: the old one, and the one that is to replace it."""
    old, new = tmp_path / "old", tmp_path / "new"
    for path, mode in ((old, 0o644), (new, 0o600)):
        path.touch()
        path.chmod(mode)
    return old, new


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o664, 0o444])
def test_the_mode_is_kept(files, mode):
    old, new = files
    old.chmod(mode)
    keep_rights(old, new)
    assert mode_of(new) == mode


def test_a_first_file_has_what_its_maker_gave_it(files):
    old, new = files
    old.unlink()
    keep_rights(old, new)
    assert mode_of(new) == 0o600


@pytest.fixture
def given(files, monkeypatch):
    """Who the old file belongs to is said by the test, and who gets the new one; `allowed` is what may be given."""
    old, new = files

    def give(owner, group, allowed):
        old.chmod(give.mode)
        was = list(old.lstat())
        was[4:6] = [owner, group]
        monkeypatch.setattr(type(old), "lstat", lambda _: os.stat_result(was))
        now = list(new.stat())

        def fchown(_, uid, gid):
            if (uid, gid) not in allowed:
                raise PermissionError(1, "Operation not permitted")
            now[4:6] = [now[4] if uid == -1 else uid, gid]

        monkeypatch.setattr(file_rights.os, "fchown", fchown)
        monkeypatch.setattr(file_rights.os, "fstat", lambda _: os.stat_result(now))
        keep_rights(old, new)
        return now[4], now[5]

    give.mode = 0o644
    return give


OWN, GROUP = os.geteuid(), os.getegid()


def test_owner_and_group_are_kept_where_that_is_allowed(given):
    assert given(4711, 4712, [(4711, 4712)]) == (4711, 4712)


def test_the_group_alone_is_kept_where_the_owner_cannot_be(given):
    given.mode = 0o640
    assert given(4711, 4712, [(-1, 4712)])[1] == 4712


def test_neither_is_needed_where_everybody_may_read(given):
    given(4711, 4712, [])


@pytest.mark.parametrize(
    ("mode", "allowed"), [(0o640, []), (0o600, []), (0o600, [(-1, 4712)])], ids=["group", "owner", "owner of a group"]
)
def test_a_file_that_its_readers_could_read_no_more_is_refused(given, mode, allowed):
    given.mode = mode
    with pytest.raises(PermissionError, match=r"its owner and group \(4711, 4712\) cannot be kept"):
        given(4711, 4712, allowed)


# -- access control lists ---------------------------------------------------------------------------------------------

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"


def access_list(*, group=0, reader=4711, mask=4, reader_may=4, owner=6):
    """A list as Linux has it: one user besides the owner may read; `group` is what the file's group may."""
    nobody = 0xFFFFFFFF
    entries = [(1, owner, nobody), (2, reader_may, reader), (4, group, nobody), (16, mask, nobody), (32, 0, nobody)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def give_list(path, name, content):
    try:
        os.setxattr(path, name, content)
    except OSError:
        pytest.skip("no access control lists on the file system of tmp_path")


def list_of(path):
    return os.getxattr(path, ACCESS) if ACCESS in os.listxattr(path) else None


@pytest.mark.parametrize("mask", [0, 4, 6])
def test_who_is_named_in_a_list_may_read_the_new_file_too(files, mask):
    old, new = files
    give_list(old, ACCESS, access_list(mask=mask))
    before = list_of(old), mode_of(old)
    keep_rights(old, new)
    assert (list_of(new), mode_of(new)) == before


def test_a_list_that_the_folder_gave_the_new_file_lets_nobody_more_read_it(files):
    old, new = files
    old.chmod(0o640)
    new.unlink()
    give_list(new.parent, DEFAULT, access_list(group=4))
    new.touch()
    assert list_of(new) is not None
    keep_rights(old, new)
    assert (list_of(new), mode_of(new)) == (None, 0o640)


def test_who_is_named_in_the_list_of_a_folder_may_read_what_is_put_into_it(tree):
    tree.chmod(0o750)
    give_list(tree, ACCESS, access_list(mask=5, reader_may=5))
    share_tree(tree / "tree", tree)
    assert list_of(tree / "tree") == access_list(mask=5, reader_may=5, owner=7)
    assert list_of(tree / "tree" / "inner" / "file") == access_list(mask=4)


def test_a_list_that_cannot_be_kept_is_told(files, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    old, new = files
    give_list(old, ACCESS, access_list())
    monkeypatch.setattr(file_rights.os, "setxattr", refuse)
    with pytest.raises(OSError, match=r"its access control list cannot be kept \(Operation not supported\): '.*/old'"):
        keep_rights(old, new)


def test_a_list_that_cannot_be_read_is_told(files, monkeypatch):
    def refuse(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(file_rights.os, "getxattr", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        keep_rights(*files)


@pytest.mark.parametrize("missing", ["the call", "the lists of the file system"])
def test_where_there_are_no_lists_the_mode_is_kept(files, monkeypatch, missing):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    if missing == "the call":
        monkeypatch.delattr(file_rights.os, "getxattr")
    else:
        monkeypatch.setattr(file_rights.os, "getxattr", refuse)
    keep_rights(*files)
    assert mode_of(files[1]) == 0o644


@pytest.mark.parametrize(("group", "refused"), [(0, True), (4, False)])
def test_an_owner_whose_group_is_not_listed_as_a_reader_has_to_stay_the_owner(given, files, group, refused):
    """The mode of a file with a list says `r` for its group where anybody is named who may read."""
    give_list(files[0], ACCESS, access_list(group=group))
    given.mode = 0o640
    if refused:
        with pytest.raises(PermissionError, match="cannot be kept"):
            given(4711, 4712, [(-1, 4712)])
    else:
        given(4711, 4712, [(-1, 4712)])


# -- whatever is put into a folder ------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    """A folder, and in it a tree that its maker has kept from everybody else."""
    folder = tmp_path / "folder"
    (folder / "tree" / "inner").mkdir(parents=True)
    (folder / "tree" / "inner" / "file").touch()
    (folder / "tree" / "link").symlink_to(tmp_path)
    for path in (folder / "tree", folder / "tree" / "inner"):
        path.chmod(0o700)
    (folder / "tree" / "inner" / "file").chmod(0o600)
    return folder


@pytest.mark.parametrize(
    ("folder_mode", "folders", "files"),
    [
        (0o755, 0o755, 0o644),
        (0o750, 0o750, 0o640),
        (0o700, 0o700, 0o600),
        (0o2775, 0o755, 0o644),
        (0o711, 0o700, 0o600),
        (0o1777, 0o700, 0o600),
    ],
)
def test_a_tree_can_be_read_by_whoever_may_list_and_enter_its_folder(tree, folder_mode, folders, files):
    tree.chmod(folder_mode)
    share_tree(tree / "tree", tree)
    assert (mode_of(tree / "tree"), mode_of(tree / "tree" / "inner")) == (folders, folders)
    assert mode_of(tree / "tree" / "inner" / "file") == files


def test_nothing_is_taken_from_anybody_and_other_bits_stay(tree):
    tree.chmod(0o750)
    (tree / "tree").chmod(0o2707)
    share_tree(tree / "tree", tree)
    assert mode_of(tree / "tree") == 0o2757


def test_a_folder_that_is_to_be_written_by_others_is_so_by_those_who_may_write_above_it(tree):
    tree.chmod(0o775)
    share(tree / "tree", tree, writable=True)
    assert mode_of(tree / "tree") == 0o775


@pytest.mark.parametrize(
    ("folder_mode", "hidden"),
    [(0o755, ("group", "others")), (0o750, ("group",)), (0o700, ()), (0o711, ()), (0o1777, ())],
)
def test_whoever_cannot_read_what_is_in_a_folder_is_named(tree, folder_mode, hidden):
    tree.chmod(folder_mode)
    for below in (tree / "tree", tree / "tree" / "inner" / "file"):  # also where it is in a folder that is closed
        assert hidden_from(below, tree) == hidden
    share_tree(tree / "tree", tree)
    assert hidden_from(tree / "tree", tree) == ()
    assert hidden_from(tree / "not-there", tree) == ()


@pytest.fixture
def of_another(tree, monkeypatch):
    """The folder belongs to a group that its user is not in."""
    fstat = os.fstat

    def told(descriptor):
        found = list(fstat(descriptor))
        if found[1] == tree.stat().st_ino:
            found[5] = 4712
        return os.stat_result(found)

    def fchown(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(file_rights.os, "fstat", told)
    monkeypatch.setattr(file_rights.os, "fchown", fchown)


@pytest.mark.usefixtures("of_another")
def test_a_group_that_would_be_kept_out_is_an_error_and_one_that_reads_as_others_do_is_none(tree):
    tree.chmod(0o750)
    with pytest.raises(PermissionError, match=r"the owner and group of its directory .*4712.* cannot be set"):
        share(tree / "tree", tree)
    tree.chmod(0o755)
    share(tree / "tree", tree)
