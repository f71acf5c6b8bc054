"""Whatever comes and however it is divided: with pieces a connection does what it does without them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from night import examples
from penstock.server.application import Response

NOISE = bytes(range(251)) * 200


def request_of(line, length, fields, offset):
    body = NOISE[offset : offset + length]
    if b"Transfer-Encoding: chunked" in fields:
        half = length // 2
        sent = b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (half or 1, body[: half or 1], length - half, body[half:])
        sent = sent if half else b"0\r\n\r\n"
        return b"\r\n".join((line, b"Host: x", *fields, b"", sent))
    return b"\r\n".join((line, b"Host: x", b"Content-Length: %d" % length, *fields, b"", body))


LINES = [b"POST /p HTTP/1.1"] * 5 + [b"GET /g HTTP/1.1", b"HEAD /h HTTP/1.1", b"POST /no HTTP/1.1", b"POST /o HTTP/1.0"]
LENGTHS = [0, 1, 4095, 4096, 4097, 9000, 17_000, 40_000]
FIELDS = [
    *[()] * 6,
    (b"Transfer-Encoding: chunked",),
    (b"Expect: 100-continue",),
    (b"Connection: close",),
    (b"Connection: keep-alive",),
]
requests = st.builds(
    request_of, st.sampled_from(LINES), st.sampled_from(LENGTHS), st.sampled_from(FIELDS), st.integers(0, 5000)
)
streams = st.lists(requests, min_size=1, max_size=5).map(b"".join)
parts = st.lists(st.tuples(st.integers(0, 200_000), st.sampled_from(["", "", "sweep", "choke", "move"])), max_size=10)


def refusing(rig):
    """One whose application refuses a path by the head, and the rest of a body where more is held than may be."""
    admit, overfull = rig.app.admit, rig.app.overfull

    def judge(request):
        admit(request)
        return Response(401, b"text/plain", b"no") if request.path == b"/no" else None

    rig.app.admit = judge
    rig.app.overfull = lambda request, own: (
        overfull(request, own) or (Response(503, b"text/plain", b"full") if own > 30_000 else None)
    )
    return rig


def play(rig, wire, steps):
    """What one connection answers to `wire`, which is cut at each step; something may happen there."""
    client = rig.connect()
    places = sorted((place % (len(wire) + 1), act) for place, act in steps)
    edges = [0, *(place for place, _ in places), len(wire)]
    for (start, stop), act in zip(pairwise(edges), [*(act for _, act in places), ""], strict=True):
        client.send(wire[start:stop])
        if client.transport.closed:
            break
        if act == "sweep":
            rig.sweep(rig.now + 6.0)
        elif act == "choke":
            client.transport.protocol.pause_writing()
            client.transport.protocol.resume_writing()
        elif act == "move":
            for body in tuple(rig.app.arriving):
                body.move_out(1 + start % 7000)
    heads_of = tuple(n for n, (request, _, _) in enumerate(rig.app.answers) if request.method == "HEAD")
    transport = client.transport
    seen = (
        bytes(transport.sent).count(b" 100 Continue"),
        [(answer.status, answer.body) for answer in client.answers(heads_of)],
        [(request.method, request.path, rig.app.body_of(request)) for request in rig.app.handled],
        (transport.closed, transport.half_closed, transport.closed or transport.reading, rig.app.held.total()),
    )
    if not transport.closed:
        client.leave()
    rig.check_promises()
    return seen


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wire=streams, steps=parts)
def test_with_pieces_a_connection_does_what_it_does_without(rig_with, wire, steps):
    plain, with_pieces = refusing(rig_with()), refusing(rig_with())
    with_pieces.app.has_pieces = True
    assert play(plain, wire, steps) == play(with_pieces, wire, steps)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wire=streams, steps=parts)
def test_the_outcome_does_not_depend_on_how_the_bytes_were_divided(rig_with, wire, steps):
    # But for a body that is refused as it grows: one that is whole at once is not asked about.
    at_once, divided = rig_with(), rig_with()
    for rig in (at_once, divided):
        rig.app.has_pieces = True
    steps = [(place, "" if act == "sweep" else act) for place, act in steps]
    first, second = play(at_once, wire, []), play(divided, wire, steps)
    assert first[1:3] == second[1:3]
