import copy
import pickle

import pytest

from penstock import jobs
from penstock.client import AsyncClient, Client
from penstock.errors import ConfigError

MAKERS = {
    "Client": lambda: Client("http://a"),
    "ClientJobs": lambda: Client("http://a").jobs,
    "AsyncClient": lambda: AsyncClient("http://a"),
    "AsyncClientJobs": lambda: AsyncClient("http://a").jobs,
    "JobQueue": lambda: jobs.connect("memory://one-process"),
    "AsyncJobQueue": lambda: jobs.connect_async("memory://one-process"),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("carry", [pickle.dumps, copy.copy], ids=["pickle", "copy"])
def test_what_has_connections_says_to_make_one_in_each_process(name, carry):
    words = f"{name} cannot be pickled or shared by processes: make one in each process"
    with pytest.raises(ConfigError, match=words):
        carry(MAKERS[name]())
