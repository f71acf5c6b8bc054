"""What runs in a worker process: the stage a user wrote, and the loop around it."""

PYTHONPATH_OF_STAGE = "PENSTOCK_STAGE_PYTHONPATH"
"""Where the PYTHONPATH that the user's code shall see waits until the worker runs; unset: it shall see none.  The
worker's own leads to this package."""
