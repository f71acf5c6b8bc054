"""A service without a model: squares come from workers that attach."""

import penstock as ps

service = ps.Service(
    ps.remote("square", batch=ps.Batch(max_size=4, max_wait=0.01), accepts=("json",), item=int, result=int),
    name="square",
    remote_worker_socket="workers.sock",
)
