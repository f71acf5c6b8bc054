"""The same service in a Flask app, for gunicorn: `gunicorn mounted:app -k gthread --threads 16`."""

import flask
from service import service
from werkzeug.middleware.dispatcher import DispatcherMiddleware

import penstock as ps

OPTIONS = ps.ServerOptions(
    overload_status=400,
    queue_timeout_status=500,
    run_timeout_status=500,
    health_path="/health_check",
)

model = ps.wsgi(service, OPTIONS)
app = flask.Flask(__name__)
app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/model": model})  # type: ignore[method-assign]


@app.get("/")
def index() -> str:
    return "The model is at /model/predict.\n"
