"""The program `penstock`, as a shell or a container starts it.

Process 1 leaves the command to a child before anything heavy is imported: the kernel drops a SIGTERM that comes
earlier, and process 1 stays small.  `health` runs every few seconds in a container, and imports nothing of the others.
"""

# PYTHON_ARGCOMPLETE_OK: a shell in which every program's completion is switched on looks for this word.

from __future__ import annotations

import sys

from penstock.cli.first_process import leave_first_process
from penstock.hosting.stdio import fill_standard_streams


def main() -> int:
    """Run the command line of this process; the exit status."""
    fill_standard_streams()
    leave_first_process()
    words = sys.argv[1:]
    if words[:1] == ["health"]:
        from penstock.cli.health_command import run_health

        return run_health(words[1:])
    from penstock.cli.main import main as run_any

    return run_any()
