"""Find the file system that a folder lies in, and whether other hosts write to it too.

SQLite's log is shared memory between its processes, and its locks are the kernel's.  On a network file system neither
holds, and the file is damaged sooner or later.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Final

MOUNTINFO: Final = Path("/proc/self/mountinfo")
SHARED: Final = re.compile(
    r"(fuse\.)?(nfs4?|cifs|smb\w*|9p|virtiofs|afs|coda|ceph|cephfs|ceph-fuse|glusterfs|lustre|beegfs\w*|gpfs|orangefs"
    r"|pvfs2|ocfs2|gfs2|ncpfs|vboxsf|prl_fs|vmhgfs\w*|hgfs|sshfs|s3fs|rclone|gcsfuse|goofys|geesefs|mount-s3"
    r"|mountpoint-s3|juicefs|davfs2?|curlftpfs|grpcfuse|osxfs|fakeowner|blobfuse2?|objectivefs|moosefs|mfs|seaweedfs)"
)
"""The types of file systems on which two hosts, or a host and its guest, may have one file open."""


def file_system(folder: str, mountinfo: str) -> str:
    """The type of the file system of an absolute `folder` without symbolic links, or "" if `mountinfo` has none.

    `mountinfo` is the text of /proc/self/mountinfo, see proc_pid_mountinfo(5).  Of two mounts on one place the later
    hides the earlier.
    """
    place, found, depth = PurePosixPath(folder), "", -1
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, types = before.split(), after.split()
        if len(fields) < 5 or not types:
            continue
        mount = PurePosixPath(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]))
        if place.is_relative_to(mount) and len(mount.parts) >= depth:
            found, depth = types[0], len(mount.parts)
    return found


def is_shared(kind: str) -> bool:
    """Whether a file system of the type `kind` is one that other hosts write to."""
    return SHARED.fullmatch(kind) is not None
