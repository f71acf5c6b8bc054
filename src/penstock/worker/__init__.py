"""What runs in a worker process: the stage a user wrote, and the loop around it."""

import signal

GENTLE_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
"""Signals that a terminal, a supervisor or a person sends to a whole group, and that must not end a worker.

The coordinator decides what they mean and when its workers end.
"""
PYTHONPATH_OF_STAGE = "PENSTOCK_STAGE_PYTHONPATH"
"""The variable that keeps the PYTHONPATH for the user's code until the worker runs.  Where it is unset, there is none.

The worker itself starts with a PYTHONPATH that leads to this package.
"""
