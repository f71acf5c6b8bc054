"""The Python client: it calls a server over HTTP, tries again as the server says, and keeps within the server's limits.

It needs httpx, which comes with ``penstock[client]``.  `Client` is for threads, `AsyncClient` for an event loop.
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("httpx") is None:
    raise ImportError("penstock.client needs httpx: pip install 'penstock[client]'")

from penstock.client.async_client import AsyncClient, AsyncClientJobs
from penstock.client.sending import ClientStats
from penstock.client.sync_client import Client, ClientJobs
from penstock.jobs.job import Job

__all__ = ["AsyncClient", "AsyncClientJobs", "Client", "ClientJobs", "ClientStats", "Job"]
