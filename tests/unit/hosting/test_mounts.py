"""Which file system a folder lies in, by the lines of /proc/self/mountinfo."""

from __future__ import annotations

import pytest

from penstock.hosting.mounts import file_system, is_shared

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /tmp rw - tmpfs tmpfs rw
31 22 0:40 / /srv rw,relatime shared:7 master:2 - nfs4 server:/export rw,vers=4.2
32 31 0:41 / /srv/with\040space rw - fuse.sshfs me@there: rw
33 31 0:42 / /srv/local rw - tmpfs tmpfs rw
34 33 0:43 / /srv/local rw - cifs //server/share rw
a line of something else
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/tmp/x", "tmpfs"),
        ("/tmpx", "ext4"),
        ("/srv", "nfs4"),
        ("/srv/with space/deep", "fuse.sshfs"),
        ("/srv/local/hidden", "cifs"),
    ],
)
def test_the_deepest_and_latest_mount_counts(folder, kind):
    assert file_system(folder, MOUNTS) == kind


def test_without_mounts_nothing_is_known():
    assert file_system("/srv", "") == ""
    assert not is_shared("")


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "fuse.sshfs", "fuse.glusterfs", "lustre", "virtiofs"]
)
def test_what_other_hosts_write_to_is_shared(kind):
    assert is_shared(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "fuse.ntfs-3g", "nfsd"])
def test_what_one_host_writes_to_is_not(kind):
    assert not is_shared(kind)
