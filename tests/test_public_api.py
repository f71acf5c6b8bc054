"""What people import: its names, its signatures, its docstrings, and what importing it costs."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

import penstock
from penstock.blocking import BlockingService

NAMES = {
    "ArtifactInvalid", "Batch", "Cancelled", "ConfigError", "ConnectionFailed", "DeadlineExceeded", "Declaration",
    "Example", "ExportRefused", "Features", "InvalidItem", "LeaseLost", "NotReady", "Overloaded", "PenstockError",
    "PublishFailed", "QuotaExceeded", "RequestError", "RunFailed", "RunUnavailable", "ServerError", "ServerOptions",
    "Service", "ServiceOptions", "Stage", "StageFailed", "StartFailed", "State", "WorkerInfo", "WorkerLost", "asgi",
    "count", "current_requests", "export", "features", "remote", "stage", "training", "wsgi",
}  # fmt: skip

STAGE = (
    "(target, *, name=None, setup=None, workers=None, cpus=None, env=None, gpus=None, batch=None, concurrency=None, "
    "prefetch=None, max_in_flight_batches=None, max_queued=None, timeout=None, orphan_timeout='auto', "
    "unhealthy_after=30.0, bisect=True, retry=True)"
)
REMOTE = (
    "(name, *, batch=None, accepts=('json', 'msgpack'), item=typing.Any, result=typing.Any, prefetch=1, "
    "max_in_flight_batches=None, max_queued=None, timeout=None, orphan_timeout='auto', unhealthy_after=30.0, "
    "retry=True, examples=())"
)
MANY = "(xs, *, timeout=None, wait=True, return_exceptions=False, urgency=3, tenant='')"

# A change here is a change for everybody who uses the project: it wants a line of news.
SIGNATURES = {
    "Batch": "(max_size=32, max_wait='auto', max_idle_gap=None, delay_when_idle=True)",
    "ArtifactInvalid": "(message='', *, file='')",
    "Cancelled": "(message='')",
    "ConfigError": "(message='')",
    "ConnectionFailed": "(message='', *, sent=False)",
    "DeadlineExceeded": "(message='', *, ran=False)",
    "Declaration": "(item=None, result=None, examples=None, batch=None)",
    "Example": "(input, output, tolerance=None)",
    "ExportRefused": "(message='', *, format='', output='', row=None, expected=None, got=None)",
    "Features": "(features, *, concat_into=None)",
    "Features.encode": "(table)",
    "Features.encode_rows": "(rows)",
    "Features.fit": "(table)",
    "Features.from_json": "(text)",
    "Features.item_type": "()",
    "Features.to_rows": "(table)",
    "Features.tf_dataset": "(table, label=None, batch_size=32)",
    "Features.tf_encode": "(tensors)",
    "Features.to_json": "()",
    "Features.torch_dataset": "(table, label=None)",
    "InvalidItem": "(reason='', *, path='')",
    "LeaseLost": "(message='')",
    "NotReady": "(message='', *, state='', retry_after=1)",
    "Overloaded": "(message='', *, retry_after=1, retry_after_ms=None, reason='queue_full')",
    "QuotaExceeded": "(message='', *, retry_after=1, retry_after_ms=None)",
    "Service": "(*stages, name='service', cpus=None, inline=False, version='', path=None, options=None, **fields)",
    "Service.blocking": "()",
    "Service.configured": "(**fields)",
    "Service.predict": "(x, *, timeout=None, wait=True, urgency=3, tenant='')",
    "Service.predict_many": MANY,
    "Service.serve": "(*, on_ready=None, **options)",
    "Service.start": "()",
    "Service.stop": "(drain_timeout=30.0)",
    "Service.stream": "(xs, *, timeout=None, return_exceptions=False, urgency=3, tenant='')",
    "Stage": "()",
    "Stage.declare": "(*args, **kwargs)",
    "Stage.predict": "(x, /)",
    "Stage.setup": "(*args, **kwargs)",
    "Stage.teardown": "()",
    "PublishFailed": "(message='')",
    "RunFailed": "(message='', *, task='', traceback='')",
    "RunUnavailable": "(message='')",
    "ServerError": "(message='')",
    "StageFailed": "(message='', *, stage='', type_name='', mro=(), traceback='', raised_at='')",
    "StageFailed.is_a": "(kind)",
    "StartFailed": "(message='', *, traceback='')",
    "WorkerInfo": "(stage, index, count, gpus=(), left=None)",
    "WorkerLost": "(message='', *, stage='', hung=False, alone=False)",
    "asgi": "(served, options=None)",
    "count": "(name, n=1, /, **labels)",
    "current_requests": "()",
    "export.load": (
        "(path, *, model_format=None, workers=1, batch=None, trust_model_code=False, model_digest=None, "
        "verify_rows=False, explain=False, name=None, cpus=None, env=None)"
    ),
    "export.publish": "(artifact, model_dir)",
    "export.rollback": "(model_dir, to=None)",
    "export.save": (
        "(model, path, *, features, reference_rows, validation_data=None, name='model', outputs=None, classes=None, "
        "batch=Batch(max_size=32, max_wait='auto', max_idle_gap=None, delay_when_idle=True), "
        "formats=None, tolerance=(1e-05, 1e-05), max_bytes=2147483648, inline_limit=268435456, "
        "outside=(), shard_bytes=536870912, metadata=None)"
    ),
    "remote": REMOTE,
    "stage": STAGE,
    "training.Run": "(folder, *, publish_to=None, lease=30.0, max_attempts=3, save_timeout=600.0)",
    "training.Run.checkpoint": "(write)",
    "training.Run.latest_checkpoint": "()",
    "training.Run.plan": "(*, train=(), evaluate=(), predict=())",
    "training.Run.results": "(phase)",
    "training.Run.work": "(*, train=None, evaluate=None, predict=None, save=None)",
    "wsgi": "(served, options=None)",
}
OPTIONS = {"ServerOptions", "ServiceOptions"}
"""Pinned field by field in the tests of the options."""
PACKAGES = {"export", "features", "training"}
PLAIN = {"PenstockError", "RequestError", "State"}
PUBLIC_PACKAGES = (
    "penstock",
    *(f"penstock.{name}" for name in ("client", "export", "features", "jobs", "stages", "training")),
)
FOR_TESTS = tuple(
    f"penstock.testing.{name}"
    for name in ("channels", "fake_workers", "graphs", "history", "stores", "virtual_clock", "workers")
)
"""The modules of `penstock.testing` that the documentation names."""


def public(name):
    """`Service.predict` by its name."""
    found = penstock
    for part in name.split("."):
        found = getattr(found, part)
    return found


def shape(name):
    """The signature as callers see it: no `self`, no annotations."""
    signature = inspect.signature(public(name))
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def methods(kind):
    """Its own public methods and properties."""
    own = (vars(base) for base in kind.__mro__ if base.__module__.startswith("penstock"))
    members = {name: member for names in own for name, member in names.items() if not name.startswith("_")}
    return {name: m for name, m in members.items() if inspect.isroutine(m) or isinstance(m, property)}


def public_objects(module_name):
    """The names that a module says are public; where it says nothing, those of what it defines itself."""
    module = importlib.import_module(module_name)
    defined = [name for name, found in vars(module).items() if getattr(found, "__module__", "") == module_name]
    names = getattr(module, "__all__", [name for name in defined if not name.startswith("_")])
    return {name: getattr(module, name) for name in names}


def test_the_public_names_are_these():
    assert set(penstock.__all__) == NAMES
    assert len(penstock.__all__) == len(NAMES)


def test_every_public_name_is_there_also_for_a_star():
    space = {}
    exec("from penstock import *", space)
    assert {name for name in space if not name.startswith("__")} == NAMES


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'servce'"):
        penstock.servce  # noqa: B018  # asking is the test


def test_every_public_signature_is_the_pinned_one():
    assert {name: shape(name) for name in SIGNATURES} == SIGNATURES
    pinned = {name for name in SIGNATURES if "." not in name}
    assert pinned | OPTIONS | PLAIN | PACKAGES == NAMES


def test_the_blocking_service_is_called_as_the_service_is():
    for name in ("predict", "predict_many", "stream"):
        ours = inspect.signature(getattr(BlockingService, name)).parameters
        theirs = inspect.signature(getattr(penstock.Service, name)).parameters
        assert [(p.name, p.kind, p.default) for p in ours.values()] == [
            (p.name, p.kind, p.default) for p in theirs.values()
        ]


def test_a_public_name_is_one_thing_wherever_it_is_imported_from():
    meant = {}
    for package in PUBLIC_PACKAGES:
        for name, found in public_objects(package).items():
            assert meant.setdefault(name, found) is found, f"{package}.{name}"


def test_everything_public_and_each_of_its_methods_has_a_docstring():
    looked_at, silent = 0, []
    for module in PUBLIC_PACKAGES + FOR_TESTS:
        for name, found in {"": importlib.import_module(module), **public_objects(module)}.items():
            said = {"": found.__doc__}
            if inspect.isclass(found):
                said |= {f".{method}": inspect.getdoc(member) for method, member in methods(found).items()}
            elif inspect.isbuiltin(found):  # compiled, which leaves a function without its docstring
                continue
            looked_at += len(said)
            silent += [f"{module}.{name}{method}" for method, text in said.items() if not (text or "").strip()]
    assert silent == []
    assert looked_at > 250


def test_the_package_says_its_version():
    assert [part.isdigit() for part in penstock.__version__.split(".")] == [True] * 3


# -- what importing costs ---------------------------------------------------------------------------------------------

HEAVY = {"numpy", "pydantic", "uvloop", "httptools", "rich", "prometheus_client", "hypothesis", "pytest"}


def loaded_by(statement):
    """The top-level modules a fresh interpreter has after `statement`."""
    program = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    path = [entry for entry in sys.path if entry]
    run = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", f"import sys; sys.path[:] = {path!r}\n{program}"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


FINISHED_RUN = """
import contextlib, penstock, tempfile
from penstock.training.rules.task_states import Phase
from penstock.training.sqlite_tasks import SqliteTasks
from penstock.training.task_store import RunPlan
with tempfile.TemporaryDirectory() as folder:
    with contextlib.closing(SqliteTasks(folder + "/run.db")) as store:
        store.plan(RunPlan({Phase.TRAIN: [1]}, folder + "/models"))
        for kind in ("train", "save"):
            store.finish(store.claim([Phase(kind)], lease=30.0, attempts=1).hold, 4)
    run = penstock.training.Run(folder, publish_to=folder + "/models")
    run.plan(train=[1])
    assert run.work(train=abs, save=dict) == 4
"""


FRAMEWORKS = {"torch", "tensorflow", "keras", "sklearn", "onnx", "pandas"}
LIGHT = {
    "what a stage's module needs": (
        "import penstock; penstock.Stage, penstock.Batch, penstock.stage, penstock.InvalidItem",
        HEAVY,
    ),
    "a worker": ("import penstock.worker.loop, penstock.worker.__main__", HEAVY),
    "who submits jobs": (
        "from penstock import jobs; jobs.connect, jobs.connect_async, jobs.Job; jobs.connect('memory://').submit(1)",
        HEAVY,
    ),
    "a worker from outside": (
        "import penstock.cli.main, penstock.cli.attached_program",
        {*HEAVY, "asyncio", "ssl", "fastapi", "starlette"},
    ),
    "a model between ready-made stages": (
        "from penstock.stages import Fetch, Outgoing, Upload",
        {*HEAVY, "asyncio", "ssl"},
    ),
    "who serves a model": (
        "import penstock.export.artifact_stage, penstock.graphs.onnx_graph",
        {*FRAMEWORKS, "httptools", "rich"},
    ),
    "who keeps embedding rows": (
        "from penstock import embeddings as emb; emb.open_training_store('memory:'), emb.init(), emb.SGD",
        {*FRAMEWORKS, *HEAVY} - {"numpy"},
    ),
    "who finds a run finished": (FINISHED_RUN, HEAVY),
    "a service in process": (
        "import penstock; penstock.Service(len)",
        {"httptools", "prometheus_client", "rich"},
    ),
}
"""For each, a program, and what it must not load."""


@pytest.mark.parametrize("who", LIGHT)
def test_nobody_loads_what_only_others_need(who):
    program, others = LIGHT[who]
    assert loaded_by(program) & others == set()


def test_the_package_itself_is_these_modules_and_loads_nothing_heavy():
    names = "print(*['MODULE:' + name for name in __import__('sys').modules if name.startswith('penstock')])"
    loaded = loaded_by(f"import penstock; {names}")
    assert loaded & HEAVY == set()
    assert {word.removeprefix("MODULE:") for word in loaded if "MODULE:" in word} == {
        "penstock",
        "penstock.chaos_text",
        "penstock.config",
        "penstock.core",
        "penstock.core.state",
        "penstock.errors",
        "penstock.log_level_text",
        "penstock.option_fields",
        "penstock.server_names",
        "penstock.spelling",
        "penstock.worker",
        "penstock.worker.stage",
    }


def test_a_client_loads_neither_a_server_nor_an_engine():
    modules = "print(*[name for name in __import__('sys').modules if name.startswith('penstock.')])"
    loaded = loaded_by(f"from penstock.client import AsyncClient, Client; {modules}")
    assert "penstock.client.sending" in loaded
    ours = {name.split(".")[1] for name in loaded if name.startswith("penstock.")}
    assert ours & {"server", "runtime", "transport", "service", "cli", "export"} == set()
    assert loaded & {"numpy", "pydantic", "httptools", "rich", "prometheus_client"} == set()


def test_a_client_without_httpx_says_what_to_install():
    hidden = "import sys; sys.modules['httpx'] = None; import importlib.util as u; f = u.find_spec"
    asked = "u.find_spec = lambda name, *more: None if name == 'httpx' else f(name, *more)"
    told = "\ntry:\n    import penstock.client\nexcept ImportError as error:\n    print(str(error).replace(' ', '_'))"
    assert "penstock.client_needs_httpx:_pip_install_'penstock[client]'" in loaded_by(f"{hidden}; {asked}{told}")
