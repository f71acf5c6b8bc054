"""What a service is made of is checked when it is made."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import threading
import warnings
import weakref

import pytest

import penstock as ps
from penstock.codec.formats import Codec
from penstock.worker.loading import ImportState
from rows import each


def double(x: int) -> int:
    return x * 2


@each("name", ["", None, 3, b"service", ".", "..", "a/b", "a b", "ü", "a%20b", "a\n", "a:b"])
def test_a_name_is_of_letters_digits_and_three_signs(name):
    with pytest.raises(ps.ConfigError) as refused:
        ps.Service(double, name=name)
    words = f"a service's name must consist of letters, digits and `._-`, and must not be `.` or `..`, got {name!r}"
    assert str(refused.value) == words


@pytest.mark.parametrize("name", ["a", "...", "Prices_2.0-eu", "-x", "9"])
def test_a_name_that_a_path_can_have_is_taken(name):
    assert ps.Service(double, name=name).name == name


@pytest.mark.parametrize("cpus", [[], (), 0, "01", [0.0], [-1], [True], [None], [[0]]])
def test_cpus_are_core_numbers_and_at_least_one(cpus):
    with pytest.raises(ps.ConfigError, match=r"service 'here': cpus must be a non-empty list of core numbers"):
        ps.Service(double, name="here", cpus=cpus)


def test_cpus_may_be_anything_that_gives_core_numbers():
    assert ps.Service(double, cpus=range(2)).cpus == (0, 1)
    assert ps.Service(double, cpus={3}).cpus == (3,)
    assert ps.Service(double).cpus is None


@pytest.mark.parametrize("inline", [None, 1, "no"])
def test_inline_is_true_or_false(inline):
    with pytest.raises(ps.ConfigError, match=r"inline must be True or False, got "):
        ps.Service(double, inline=inline)
    with pytest.raises(ps.ConfigError, match=r"inline must be True or False, got "):
        ps.Service(double).configured(inline=inline)


@pytest.mark.parametrize("options", [{}, {"max_in_flight": 3}, ps.ServerOptions(), 0, ps.ServiceOptions])
def test_options_are_service_options(options):
    with pytest.raises(ps.ConfigError, match=r"options must be a penstock.ServiceOptions, got "):
        ps.Service(double, options=options)


def test_options_come_as_one_or_field_by_field():
    options = ps.ServiceOptions(max_in_flight=3)
    assert ps.Service(double, options=options).options is options
    assert ps.Service(double, max_in_flight=3).options == options
    with pytest.raises(ps.ConfigError, match="not both"):
        ps.Service(double, options=options, timeout=1.0)


def test_an_option_there_is_not_is_refused_at_birth_and_later():
    with pytest.raises(ps.ConfigError, match="'bogus'"):
        ps.Service(double, bogus=1)
    with pytest.raises(ps.ConfigError, match="'bogus'"):
        ps.Service(double).configured(bogus=1)
    with pytest.raises(ps.ConfigError, match="max_in_flight must be at least 1, got 0"):
        ps.Service(double).configured(max_in_flight=0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("max_batch_size", "write `penstock.stage(..., batch=penstock.Batch(max_size=...))`"),
        ("accelerator", "write `penstock.stage(..., gpus=...)`"),
        ("prefetch", "write `penstock.stage(..., prefetch=...)`"),
        ("port", "write `service.serve(port=...)`"),
        ("max_queue_size", "write `max_in_flight=...`"),
        ("nam", "did you mean `name=...`?"),
    ],
)
def test_an_argument_there_is_not_is_told_where_it_is(name, words):
    with pytest.raises(ps.ConfigError) as refused:
        ps.Service(double, **{name: 1})
    assert str(refused.value) == f"service 'service': there is no {name!r} here: {words}"


def test_an_option_of_the_service_is_told_to_who_gives_it_to_the_server():
    with pytest.raises(ps.ConfigError) as refused:
        ps.Service(double).serve(timeout=1)
    assert str(refused.value) == "serve: there is no 'timeout' here: write `penstock.Service(..., timeout=...)`"


def test_a_configured_service_has_the_workers_asked_for():
    before = ps.Service(ps.stage(double, name="a"), ps.stage(double, name="b", workers=2))
    after = before.configured(workers={"a": 3})
    assert [spec.workers for spec in after.stages] == [3, 2]
    assert [spec.workers for spec in before.stages] == [1, 2]
    assert [spec.workers for spec in before.configured(workers=4).stages] == [4, 4]
    assert before.configured(workers=None).stages == before.stages


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ({"c": 2}, "service 'double' has no stage 'c'; it has a, b"),
        (0, "stage 'a': workers must be a whole number of at least 1, got 0"),
        ("2", "stage 'a': workers must be a whole number of at least 1, got '2'"),
    ],
)
def test_a_service_cannot_be_configured_to_workers_that_cannot_be(workers, words):
    service = ps.Service(ps.stage(double, name="a"), ps.stage(double, name="b"), name="double")
    with pytest.raises(ps.ConfigError, match=words):
        service.configured(workers=workers)


def test_a_service_is_not_served_while_a_worker_imports_its_script(monkeypatch):
    monkeypatch.setattr(ImportState, "importing", True)
    with pytest.raises(ps.ConfigError, match="move the code that starts it under"):
        ps.Service(double).serve(port=-1)


async def test_a_service_is_not_served_where_an_event_loop_runs():
    with pytest.raises(ps.ConfigError) as refused:
        ps.Service(double, name="here").serve(port=0)
    assert str(refused.value) == (
        "service 'here': serve() starts its own event loop, but one is already running: call it outside of async "
        "code; or mount penstock.asgi(service) in the running server; or use the service without HTTP, `async with "
        "service:`"
    )


def test_a_service_is_served_in_the_main_thread_only():
    refused = []

    def serve():
        try:
            ps.Service(double, name="here").serve(port=0)
        except ps.ConfigError as error:
            refused.append(str(error))

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    (words,) = refused
    assert words == (
        "service 'here': serve() handles signals and works only in the main thread: call it there; or run "
        "penstock.asgi(service) under another ASGI server; or use the service without HTTP, `with service.blocking() "
        "as s:`"
    )


def test_a_configured_service_differs_in_what_was_asked_for_only():
    before = ps.Service(double, name="one", cpus=[0], version="7", max_in_flight=3, validate_inputs=True)
    before.model_version = 3
    after = before.configured(max_in_flight=4, inline=True)
    assert after.options == ps.ServiceOptions(max_in_flight=4, validate_inputs=True)
    assert (after.name, after.cpus, after.stages, after.inline) == ("one", (0,), before.stages, True)
    assert (after.version, after.model_version) == ("7", 3)
    assert (before.options.max_in_flight, before.inline) == (3, False)


@pytest.mark.parametrize("version", [None, 7, "two\nlines", "x" * 129])
def test_a_version_is_a_short_text(version):
    with pytest.raises(
        ps.ConfigError, match="service 'here': version must be a string of at most 128 printable characters"
    ):
        ps.Service(double, name="here", version=version)
    assert ps.Service(double).version == ""
    assert ps.Service(double, version="x" * 128).version == "x" * 128


@pytest.mark.parametrize("drain", [None, math.nan, -1, -math.inf, True, "30"])
async def test_a_drain_that_is_no_time_is_refused_even_where_there_is_nothing_to_stop(drain):
    with pytest.raises(ps.ConfigError, match=r"drain_timeout must be a number of seconds, at least 0, got "):
        await ps.Service(double).stop(drain)


def test_the_path_of_a_service_is_an_option_of_it():
    assert ps.Service(double, path="/inference").options == ps.ServiceOptions(predict_path="/inference")
    both = ps.Service(double, path="/a", options=ps.ServiceOptions(max_in_flight=7))
    assert both.options == ps.ServiceOptions(max_in_flight=7, predict_path="/a")
    assert both.configured(predict_path="/b").options.predict_path == "/b"


# -- life, with an engine in memory -----------------------------------------------------------------------------------


@pytest.fixture
def service(monkeypatch, make_engine):
    monkeypatch.setattr("penstock.runtime.engine.Engine", make_engine)
    made = ps.Service(double, name="here")
    yield made
    if made.engine is not None:
        made.engine.state = ps.State.STOPPED


async def test_a_started_service_sends_its_calls_to_its_engine(service):
    await service.start()
    service.engine.answer = lambda item: item * 2
    assert await service.predict(21) == 42
    assert await service.predict_many([1, 2]) == [2, 4]
    assert [y async for y in service.stream([1, 2, 3])] == [2, 4, 6]


async def test_the_calls_of_a_service_speak_what_its_external_stages_do(monkeypatch, make_engine):
    monkeypatch.setattr("penstock.runtime.engine.Engine", make_engine)
    service = ps.Service(
        ps.remote("first", accepts=["json"], item=float),
        ps.remote("last", accepts=["json"], result=int),
        remote_worker_socket="/run/here.sock",
    )
    await service.start()
    service.engine.answer = lambda item: b"[]" if item == b"1" else item
    assert await service.predict(2) == 2
    with pytest.raises(ps.StageFailed, match="expected `int`, got `array`") as failed:
        await service.predict(1)
    assert failed.value.stage == "last"
    with pytest.raises(ps.InvalidItem, match="the input has NaN"):
        await service.predict(math.nan)
    assert service.engine.submissions[0].codecs == (Codec.JSON, Codec.JSON)
    service.engine.state = ps.State.STOPPED


async def test_each_start_has_an_engine_of_its_own(service):
    await service.start()
    first = service.engine
    await service.stop()
    await service.start()
    assert service.engine is not first
    service.engine.answer = lambda item: item
    assert await service.predict(1) == 1
    assert first.submissions == []


async def test_the_first_failure_of_many_is_raised_or_each_stands_where_its_result_would(service):
    await service.start()
    service.engine.answer = lambda item: ps.Overloaded(f"no {item}") if item > 1 else item
    with pytest.raises(ps.Overloaded, match="no 2"):
        await service.predict_many([1, 2, 3])
    first, *rest = await service.predict_many([1, 2, 3], return_exceptions=True)
    assert first == 1
    assert [str(error) for error in rest] == ["no 2", "no 3"]


async def test_a_service_that_runs_is_not_started_again(service):
    await service.start()
    with pytest.raises(ps.ConfigError, match="service 'here' is already ready"):
        await service.start()


CLOSED = r"service 'here' was started on an event loop that is closed; call stop\(\) and start it on the running loop"


def test_a_service_that_was_left_on_a_closed_loop_says_so_until_it_is_stopped(service):
    asyncio.run(service.start())
    with pytest.raises(ps.ConfigError, match=CLOSED):
        asyncio.run(service.start())
    with pytest.raises(ps.ConfigError, match=CLOSED):
        asyncio.run(service.predict(1))
    asyncio.run(service.stop())
    with pytest.raises(ps.NotReady, match="service 'here' has stopped"):
        asyncio.run(service.predict(1))
    asyncio.run(service.start())
    assert service.state is ps.State.READY
    asyncio.run(service.stop())


async def test_a_stop_drains_for_as_long_as_it_is_told(service):
    await service.stop(drain_timeout=1)
    await service.start()
    await service.stop(drain_timeout=2)
    await service.stop(drain_timeout=3)
    assert service.engine.stopped_with == [2.0]


async def test_leaving_the_block_stops_the_service(service):
    async with service as same:
        assert same is service
        assert service.state is ps.State.READY
    assert service.state is ps.State.STOPPED
    assert service.engine.stopped_with == [30.0]


def test_a_stop_where_the_services_loop_has_ended_abandons_the_engine(service):
    asyncio.run(service.start())
    engine = service.engine
    asyncio.run(service.stop())
    assert (engine.abandoned, engine.stopped_with) == (1, [])
    assert service.state is ps.State.STOPPED


def test_a_stop_on_another_loop_is_made_on_the_services_own(service):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(service.start(), loop).result(20)
    asyncio.run(service.stop(drain_timeout=4))
    loop.call_soon_threadsafe(loop.stop)
    thread.join(20)
    loop.close()
    assert (service.engine.abandoned, service.engine.stopped_with) == (0, [4.0])


async def begun(service):
    return [y async for y in service.stream([1])]


@pytest.mark.parametrize(
    "call",
    [
        lambda service: service.start(),
        lambda service: service.predict(1),
        lambda service: service.predict_many([]),
        begun,
    ],
    ids=["start", "predict", "predict_many", "stream"],
)
async def test_in_a_fork_each_call_says_where_the_service_was_started(service, monkeypatch, call):
    await service.start()
    refused = pytest.raises(
        ps.ConfigError,
        match=f"^service 'here' was started in process {os.getpid()}, before a fork; start it after the fork$",
    )
    monkeypatch.setattr("penstock.calls.os.getpid", lambda: -1)
    with refused:
        await call(service)
    with refused:
        service.check_process()
    assert repr(service) == "<Service 'here': double; ready>"
    assert service.configured(timeout=3).state is ps.State.STOPPED
    monkeypatch.undo()
    service.check_process()
    await service.stop()


async def test_a_service_that_was_stopped_before_the_fork_is_started_in_it_as_ever(service, monkeypatch):
    await service.start()
    await service.stop()
    monkeypatch.setattr("penstock.calls.os.getpid", lambda: -1)
    await service.start()
    assert service.state is ps.State.READY
    await service.stop()
    assert service.engine.stopped_with == [30.0]


async def test_a_copy_that_is_collected_ends_nothing(service, monkeypatch):
    await service.start()
    engine = service.engine
    monkeypatch.setattr("penstock.calls.os.getpid", lambda: -1)
    service.__del__()
    assert engine.abandoned == 0


async def test_a_fork_leaves_the_workers_alone_and_has_a_service_that_was_never_started(service, monkeypatch):
    await service.start()
    engine = service.engine
    monkeypatch.setattr("penstock.calls.os.getpid", lambda: -1)
    await service.stop()
    assert (engine.abandoned, engine.stopped_with) == (0, [])
    assert (service.engine, service.state) == (None, ps.State.STOPPED)
    with pytest.raises(ps.NotReady, match="was never started"):
        await service.predict(1)
    await service.start()
    assert service.state is ps.State.READY
    assert service.engine is not engine


async def test_a_service_that_is_forgotten_while_it_runs_says_so_and_ends_its_workers(service):
    await service.start()
    engine = service.engine
    with pytest.warns(ResourceWarning, match="'here' was started but never stopped"):
        service.__del__()
    assert engine.abandoned == 1
    service.__del__()
    assert engine.abandoned == 1


async def test_a_forgotten_service_ends_its_workers_though_warnings_are_errors(service):
    await service.start()
    with warnings.catch_warnings(action="error"), pytest.raises(ResourceWarning, match="never stopped"):
        service.__del__()
    assert service.engine.abandoned == 1


def test_a_stream_keeps_its_service_as_long_as_it_lives():
    service = ps.Service(double)
    kept = weakref.ref(service)
    stream = service.stream([1])
    del service
    gc.collect()
    assert kept() is not None
    del stream
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize(
    ("service_options", "stage_options", "words"),
    [
        ({}, {}, ""),
        ({"cpus": [0]}, {}, ", and these options are ignored: cpus"),
        ({}, {"cpus": [0]}, ", and these options are ignored: cpus"),
        ({"cpus": [0]}, {"env": {"A": "b"}}, ", and these options are ignored: cpus and env"),
        ({}, {"gpus": [0]}, ", and these options are ignored: gpus"),
    ],
)
async def test_an_inline_service_warns_of_what_it_does_without(
    service_options, stage_options, words, service, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("penstock"), "propagate", True)
    inline = ps.Service(ps.stage(double, **stage_options), name="one", inline=True, **service_options)
    await inline.start()
    assert caplog.messages == [f"service 'one' runs inline: workers are threads, so lost items are not retried{words}"]
    await inline.stop()


def test_an_option_of_the_server_there_is_not_is_refused_before_anything_opens(service):
    with pytest.raises(ps.ConfigError, match=r"serve: .*'bogus'"):
        service.serve(bogus=1)


# -- workers from outside ---------------------------------------------------------------------------------------------


def test_workers_from_outside_cannot_be_threads():
    words = "service 'here': stage 'square' is remote, so its workers cannot be threads of this process"
    with pytest.raises(ps.ConfigError, match=f"^{words}: remove inline$"):
        ps.Service(double, ps.remote("square"), name="here", inline=True)
    with pytest.raises(ps.ConfigError, match=words):
        ps.Service(ps.remote("square"), name="here").configured(inline=True)


def test_two_external_stages_in_a_row_need_a_format_that_both_have():
    one, other = ps.remote("one", accepts=("json",)), ps.remote("other", accepts=("msgpack",))
    with pytest.raises(ps.ConfigError, match=r"^stages 'one' and 'other' have no format in common"):
        ps.Service(one, other)
    assert len(ps.Service(one, double, other).stages) == 3


async def test_workers_from_outside_need_a_socket_when_the_service_starts():
    service = ps.Service(double, ps.remote("square"), name="here")
    words = "service 'here': stage 'square' is remote and needs the path of a Unix socket: set "
    with pytest.raises(ps.ConfigError) as refused:
        await service.start()
    assert str(refused.value) == words + "Service(..., remote_worker_socket=PATH), or --remote-worker-socket PATH"
    assert service.engine is None
    assert (
        service.configured(remote_worker_socket="/run/square.sock").options.remote_worker_socket == "/run/square.sock"
    )


async def test_a_socket_for_workers_needs_a_stage_that_they_run():
    service = ps.Service(double, name="here", remote_worker_socket="/run/square.sock")
    words = "service 'here': remote_worker_socket is '/run/square.sock', but the service has no remote stage"
    with pytest.raises(ps.ConfigError, match=f"^{words}; "):
        await service.start()
    assert service.engine is None


def test_a_number_of_workers_is_for_the_stages_of_ours():
    service = ps.Service(ps.stage(double, name="double"), ps.remote("square"), name="here")
    assert [spec.workers for spec in service.configured(workers=3).stages] == [3, 0]
    with pytest.raises(ps.ConfigError, match=r"^stage 'square': it is remote"):
        service.configured(workers={"square": 2})
    with pytest.raises(ps.ConfigError, match=r"^service 'all': workers=2 applies to no stage"):
        ps.Service(ps.remote("square"), name="all").configured(workers=2)
