"""What runs in a worker process: the stage a user wrote, and the loop around it."""

PYTHONPATH_OF_STAGE = "PENSTOCK_STAGE_PYTHONPATH"
"""The variable that keeps the PYTHONPATH for the user's code until the worker runs.  Where it is unset, there is none.

The worker itself starts with a PYTHONPATH that leads to this package.
"""
