"""Which paths the services of an app have, and what a request remembers of the one it took."""

from __future__ import annotations

import pytest

from penstock.config import ServerOptions
from penstock.errors import ConfigError
from penstock.hosting.fault_log import FaultLog
from penstock.hosting.loop_clock import LoopClock
from penstock.server.protocols.predict import PredictRoute
from penstock.server.protocols.route import PageRoute
from penstock.server.protocols.service_routes import routes_of
from penstock.server.status import Problems


def routes(*services):
    options = ServerOptions()
    return routes_of(services, Problems(options, FaultLog(LoopClock())), options)


def test_one_service_has_plain_paths(fakes):
    assert list(routes(fakes.Service(name="one"))) == ["/predict", "/batch"]


def test_each_of_several_services_has_its_name_before_its_paths(fakes):
    one, two = fakes.Service(name="one"), fakes.Service(name="two.v2")
    found = routes(one, two)
    assert list(found) == ["/one/predict", "/one/batch", "/two.v2/predict", "/two.v2/batch"]
    assert [route.service for route in found.values()] == [one, one, two, two]


def test_a_path_of_the_services_own_stands_beside_its_others(fakes):
    plain, moved = fakes.Service(name="plain"), fakes.Service(name="moved", predict_path="/v1/models/m:predict")
    assert list(routes(moved)) == ["/predict", "/batch", "/v1/models/m:predict"]
    found = routes(plain, moved)["/v1/models/m:predict"]
    assert (type(found), found.service) == (PredictRoute, moved)
    app = fakes.app(moved)
    call = fakes.call(app, path="/v1/models/m:predict")
    assert moved.engine.submissions[-1].payloads == [b"[1.0]"]
    app.answered(call.request, 200, 0)
    metrics = fakes.call(app, "GET", "/metrics").response.body
    assert b'{route="/v1/models/m:predict",service="moved",status="200"} 1' in metrics
    assert "POST to /predict, /batch, /v1/models/m:predict" in fakes.call(app, "GET", "/").json["detail"]


def test_of_several_services_one_may_have_the_plain_path(fakes):
    services = fakes.Service(name="one", predict_path="/predict"), fakes.Service(name="two")
    assert list(routes(*services))[-1] == "/predict"


@pytest.mark.parametrize("path", ["/predict", "/batch", "/livez", "/docs", "/openapi.json", "/jobs/7"])
def test_a_path_that_the_server_has_already_is_refused(fakes, path):
    others = [PageRoute("/jobs/{id}", lambda _: None, None)]
    words = f"^predict_path of service 'one' cannot be {path}: the server already uses this path"
    with pytest.raises(ConfigError, match=words):
        fakes.app(fakes.Service(name="one", predict_path=path), others=others)


def test_two_services_cannot_have_one_path(fakes):
    for first, second in (("/a", "/a"), (None, "/one/predict")):
        services = fakes.Service(name="one", predict_path=first), fakes.Service(name="two", predict_path=second)
        with pytest.raises(ConfigError, match=f"^predict_path of service 'two' cannot be {second}"):
            fakes.app(*services)
    with pytest.raises(ConfigError, match=r"^health_path cannot be /a: the server already uses this path"):
        fakes.app(fakes.Service(predict_path="/a"), health_path="/a")


def test_the_formats_of_a_repeated_pair_of_headers_are_looked_up_and_not_made_again(fakes):
    app = fakes.app()
    first, second = (fakes.call(app, accept="application/x-msgpack").request for _ in range(2))
    other = fakes.call(app).request
    assert first.route is second.route is other.route is app._routes[b"/predict"]
    assert first.formats is second.formats
    assert first.formats is not other.formats


def test_a_page_is_the_route_of_its_request_and_has_no_formats(fakes):
    app = fakes.app()
    request = fakes.call(app, "GET", "/health").request
    assert request.route is app._routes[b"/health"]
    assert request.formats is None


def test_the_priority_of_a_request_is_its_urgency_at_its_head_and_at_its_submission(fakes):
    service = fakes.Service()
    app = fakes.app(service)
    for path, body in (("/predict", b"[1]"), ("/batch", b"[[1],[2]]")):
        for field, urgency in (("u=0", 0), ("i, u=6", 6), ("u=8", 3), ("no, dictionary,", 3)):
            fakes.call(app, path=path, body=body, priority=field)
            assert service.engine.asked[2] == service.engine.submissions[-1].urgency == urgency
        fakes.call(app, path=path, body=body)
        assert service.engine.asked[2] == service.engine.submissions[-1].urgency == 3
