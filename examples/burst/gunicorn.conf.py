"""What gunicorn does here besides serving: it starts the model before the first request, and stops it at the end."""

from typing import Any


def post_worker_init(worker: Any) -> None:  # noqa: ARG001
    from mounted import model

    model.start()


def worker_exit(server: Any, worker: Any) -> None:  # noqa: ARG001
    from mounted import model

    model.stop()
