"""Which paths the services of an app have, and what a request remembers of the one it took."""

from __future__ import annotations

from penstock.config import ServerOptions
from penstock.hosting.fault_log import FaultLog
from penstock.hosting.loop_clock import LoopClock
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
