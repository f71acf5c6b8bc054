"""Ends what a dead worker leaves behind: the other processes of its group, gently at first.

Libraries start processes that clean up after a worker, such as the resource trackers of `multiprocessing` and loky.
These ignore SIGTERM, and end when all who use what they know of have ended.  A group gets SIGTERM when its leader has
died.  After four seconds each process that is left and is no tracker gets SIGKILL, and half a second later all do.
The next worker does not wait for that.

A shell does it, which is no child of this process and outlives it: where this process is killed, the shell reads the
end of its pipe, and ends the groups of all its workers in the same way.  Where there is no shell, there is no reaper,
and a group is killed with its leader.
"""

from __future__ import annotations

import os
import subprocess
import threading
from typing import Final

from penstock.transport.forks import keep_from_forks

_SHELL: Final = "/bin/sh"
_DETACH: Final = 'exec 3<&0; ("$0" -c "$1" penstock-reaper <&3 3<&- &)'
"""Starts the reaper from a shell that ends at once, so that it is no child of this process.

Its standard input is named, because a shell gives what it starts in the background an empty one.
"""
_SCRIPT: Final = """
# Ends what the workers of a Penstock service leave behind, and itself when the service has ended.
trap "" TERM INT HUP QUIT USR1
PATH=$PATH:/usr/bin:/bin  # for sleep and grep: without them it would kill at once
end() {
    group=$1
    for pause in 0.1 0.1 0.2 0.3 0.5 0.7 0.7 0.7 0.7; do
        kill -s 0 -- "-$group" || return
        sleep "$pause" || sleep 1
    done
    for process in /proc/[0-9]*; do
        read -r stat <"$process/stat" && set -- ${stat##*) } && [ "$3" = "$group" ] || continue
        grep -q resource_tracker "$process/cmdline" || kill -s KILL "${process#/proc/}"
    done
    sleep 0.5 || sleep 1
    kill -s KILL -- "-$group"
}
groups=
while read -r what group; do
    if [ "$what" = begin ]; then
        groups="$groups $group"
        continue
    fi
    others=
    for other in $groups; do
        [ "$other" = "$group" ] || others="$others $other"
    done
    groups=$others
    if [ "$what" = end ] && kill -s TERM -- "-$group"; then end "$group" & fi
done
for group in $groups; do
    if kill -s TERM -- "-$group"; then end "$group" & fi
done
wait
"""


class GroupReaper:
    """The reaper of this process's workers.  Any thread may call it.

    It is started with the first worker and kept until this process ends, as Python keeps a resource tracker.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._pipe = -1
        self._owner = 0
        """The process that started the shell: a fork of it tells it nothing."""

    def own_descriptors(self) -> list[int]:
        """The pipe: the shell waits for the end of it, and a fork must not keep it open."""
        return [self._pipe] if self._pipe >= 0 else []

    def ready(self) -> bool:
        """Whether there is a shell that ends groups; it is started if there is none."""
        if self._owner != os.getpid():  # a fork, perhaps of a process whose other thread held the lock
            self._lock, self._groups, self._pipe, self._owner = threading.Lock(), set(), -1, os.getpid()
        with self._lock:
            return self._pipe >= 0 or self._start()

    def begin(self, group: int) -> None:
        """End `group` too where this process is killed."""
        with self._lock:
            self._groups.add(group)
            if not self._tell(f"begin {group}") and self._start():
                for other in self._groups:
                    self._tell(f"begin {other}")

    def end(self, group: int) -> bool:
        """Have `group`, whose leader has been waited for, ended now; False where there is nobody who does."""
        return self._leave("end", group)

    def forget(self, group: int) -> None:
        """Leave `group` alone: its number may be another's."""
        self._leave("forget", group)

    def _leave(self, what: str, group: int) -> bool:
        with self._lock:
            self._groups.discard(group)
            return self._tell(f"{what} {group}")

    def _start(self) -> bool:
        try:
            read, write = os.pipe()
        except OSError:
            return False
        try:
            # The words are ours.
            subprocess.run(  # noqa: S603
                [_SHELL, "-c", _DETACH, _SHELL, _SCRIPT],
                stdin=read,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
                check=False,
            )
        except OSError:
            os.close(write)
            return False
        finally:
            os.close(read)
        self._pipe = write
        keep_from_forks(self)
        return True

    def _tell(self, order: str) -> bool:
        if self._pipe < 0 or self._owner != os.getpid():
            return False
        try:
            os.write(self._pipe, f"{order}\n".encode())
        except OSError:  # somebody has killed the shell
            pipe, self._pipe = self._pipe, -1
            os.close(pipe)
            return False
        return True


reaper: Final = GroupReaper()
"""That of this process."""
