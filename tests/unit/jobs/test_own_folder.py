import fcntl
import shutil

import pytest

from penstock.errors import ConfigError
from penstock.jobs.own_folder import OwnFolder


def test_each_has_a_folder_of_its_own_for_this_user_alone(tmp_path):
    common = tmp_path / "deep" / "spool"
    one, two = OwnFolder(common, "spool"), OwnFolder(common, "spool")
    assert one.path != two.path
    assert {path.stat().st_mode & 0o777 for path in (common, one.path, two.path)} == {0o700}
    (one.path / "file").write_bytes(b"x")
    one.remove()
    assert not one.path.exists()
    assert two.path.exists()
    two.remove()
    assert list(common.iterdir()) == []


def test_what_a_dead_process_has_left_is_removed_and_what_a_live_one_has_is_not(tmp_path):
    live = OwnFolder(tmp_path, "spool")
    dead = tmp_path / "penstock-dead"
    dead.mkdir()
    (dead / "lock").touch()
    (dead / "1.result").write_bytes(b"x")
    strange = tmp_path / "penstock-without-a-lock"
    strange.mkdir()
    new = OwnFolder(tmp_path, "spool")
    assert not dead.exists()
    assert live.path.exists()
    assert strange.exists()
    new.remove()
    live.remove()


def test_a_folder_that_another_process_removes_before_it_is_locked_is_made_once_more(tmp_path, monkeypatch):
    real = fcntl.flock
    removed = []

    def late(lock, how):
        if not removed:
            removed.extend(tmp_path.iterdir())
            shutil.rmtree(removed[0])
        real(lock, how)

    monkeypatch.setattr(fcntl, "flock", late)
    folder = OwnFolder(tmp_path, "spool")
    assert folder.path.exists()
    assert removed == [path for path in removed if path != folder.path]
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"spool: .*file/spool: Not a directory"):
        OwnFolder(tmp_path / "file" / "spool", "spool")


@pytest.mark.parametrize("make", [lambda place, victim: place.symlink_to(victim), lambda place, victim: place.touch()])
def test_what_somebody_else_has_put_in_its_place_is_not_used(tmp_path, make):
    victim = tmp_path / "victim"
    victim.mkdir()
    victim.chmod(0o755)  # whatever the umask
    make(tmp_path / "common", victim)
    with pytest.raises(ConfigError, match="is not a directory that this user owns"):
        OwnFolder(tmp_path / "common", "the folder for downloads")
    assert victim.stat().st_mode & 0o777 == 0o755
