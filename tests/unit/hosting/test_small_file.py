"""Which files of options are read: regular ones, of a bounded size."""

from __future__ import annotations

import os
import threading

import pytest

from penstock.errors import ConfigError
from penstock.hosting.small_file import read_small_file
from penstock.hosting.tenants_file import read_tenants
from penstock.server.auth import read_keys

TENANTS = b"[tenants.gold]\nrate = 0.1\n"


def test_a_file_is_read_whole_through_links_and_up_to_its_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    (tmp_path / "link").symlink_to(path)
    assert read_small_file(str(tmp_path / "link"), 3, "it") == b"abc"
    with pytest.raises(ConfigError, match=r"^it is larger than 2 bytes$"):
        read_small_file(str(path), 2, "it")


@pytest.mark.parametrize(("read", "name"), [(read_tenants, "tenants_file"), (read_keys, "api_key_file")])
def test_a_pipe_that_can_be_read_only_once_is_refused(read, name):
    ours, theirs = os.pipe()
    try:
        os.write(theirs, TENANTS)
        os.close(theirs)
        with pytest.raises(ConfigError, match=f"^{name} '/dev/fd/{ours}' is not a regular file"):
            read(f"/dev/fd/{ours}")
    finally:
        os.close(ours)


@pytest.mark.parametrize("read", [read_tenants, read_keys])
def test_a_named_pipe_is_refused_and_nobody_waits_for_its_writer(tmp_path, read):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    found = []

    def refused():
        try:
            read(str(path))
        except ConfigError as error:
            found.append(str(error))

    reader = threading.Thread(target=refused, daemon=True)
    reader.start()
    reader.join(20)
    assert len(found) == 1
    assert "is not a regular file" in found[0]


@pytest.mark.parametrize("read", [read_tenants, read_keys])
def test_a_folder_is_refused(tmp_path, read):
    with pytest.raises(ConfigError, match="is not a regular file"):
        read(str(tmp_path))
