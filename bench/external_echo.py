"""The echo with a worker that attaches from outside: the stage of `echo.py`, in a process that no server started.

Like `echo.py`, everything is at its defaults.  What is measured is what the door costs beside a worker of ours: the
checks of what a worker says that nobody here has started.

    penstock serve external_echo:service --remote-worker-socket echo.sock
    penstock worker run echo:Echo --connect echo.sock
"""

from __future__ import annotations

import penstock as ps

service = ps.Service(ps.remote("echo", batch=ps.Batch(), item=list[float], result=list[float]), name="echo")
