from __future__ import annotations

import os
import stat

import pytest

from penstock.hosting import file_rights
from penstock.hosting.file_rights import keep_rights


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
