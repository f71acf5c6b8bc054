"""The night: every kind of trouble at once, by seed; who behaves well is served, and nothing is left of it.

`PENSTOCK_NIGHT_SECONDS` and `PENSTOCK_NIGHT_SEED` shorten and repeat it. A seed repeats what each client does, not when
the machine lets it.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import msgspec
import pytest
import stages
from attaching import Peer
from notes_and_gates import notes
from processes import descriptors, resident, running
from served import CHANGED_SETTINGS, LAST_SETTING, PATIENCE_SECONDS, Server, Wire, request, write_module
from waiting import until_now

from penstock.codec.formats import Codec
from penstock.transport.framing import Kind, encode_answers

SECONDS = float(os.environ.get("PENSTOCK_NIGHT_SECONDS", "600"))
SEED = int(os.environ.get("PENSTOCK_NIGHT_SEED") or random.SystemRandom().randrange(10**6))

pytestmark = [pytest.mark.soak, pytest.mark.timeout(SECONDS + 300)]

SOURCE = f"""
import dataclasses
import threading
import sys
import time

import penstock as ps

sys.path.append({str(Path(stages.__file__).parent)!r})
import stages
{CHANGED_SETTINGS}
lock = threading.Lock()
lock.acquire()

class Twice(ps.Stage):
    batch = ps.Batch(max_size=8, max_wait=0.002)

    def predict(self, xs: list[int]) -> list[int]:
        time.sleep(0.001)
        return [x * 2 if x > 0 else x for x in xs]

def swell(x: int) -> int | str:
    return x if x > 0 else "x" * -x

class Shaky(ps.Stage):
    batch = ps.Batch(max_size=8)
    examples = (1,)

    def predict(self, xs: list[int]) -> list[int]:
        for x in xs:
            if x == 0:
                lock.acquire()
            if x < 0:
                raise ValueError("y" * -x)
        return [x + 1 for x in xs]

@dataclasses.dataclass
class House:
    rooms: int
    garden: float = 10.0
    colours: list[str] = dataclasses.field(default_factory=lambda: ["white"])
    area: float = dataclasses.field(init=False, default=0.0)

    def __post_init__(self):
        if self.rooms == 0:
            raise KeyError("a secret")
        if self.rooms < 0:
            raise ValueError("a house has rooms")
        self.area = 20.0 * self.rooms

class Houses(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, xs: list[House]) -> list[House]:
        for x in xs:
            made = House(x.rooms, x.garden, x.colours)
            assert (x, vars(x)) == (made, vars(made)), vars(x)
        return xs

class Sharing(stages.Shares):
    def setup(self) -> None:
        # Its tracker warns of what it cleans up, and has half a second for it: less than the log lies unread.
        os.environ["PYTHONWARNINGS"] = "ignore"
        super().setup()
        stages.note("shared", super().predict("told"))

    def predict(self, x: int) -> int:
        return x + 3

sound = ps.Service(ps.stage(Twice, workers=2), ps.stage(swell, workers=2), name="sound")
shaky = ps.Service(ps.stage(Shaky, workers=2, orphan_timeout=1.0), name="shaky")
fragile = ps.Service(ps.stage(stages.FragileWithExample, workers=2, setup=dict(fits=4)), name="fragile")
houses = ps.Service(Houses, name="houses")
sharing = ps.Service(Sharing, name="sharing")
outside = ps.Service(ps.remote("add", item=int, result=int), name="outside", remote_worker_socket="outside.sock")
{LAST_SETTING}
"""
ANSWERS = {
    "sound": lambda x: x * 2,
    "shaky": lambda x: x + 1,
    "fragile": lambda x: x * 2,
    "sharing": lambda x: x + 3,
    "outside": lambda x: x + 4,
}
SERVICES = (*ANSWERS, "houses")
MAY_BE_LATE = ("shaky", "fragile")
UNHARMED = ("fragile", "outside")
"""Those whose workers nobody kills."""
WORKERS = 10
"""Of ours, of all services."""
MAX_CONNECTIONS = 48
OPTIONS = (
    *("--port", "0", "--access-log", "--timeout", "15", "--write-timeout", "2"),
    *("--max-connections", str(MAX_CONNECTIONS), "--max-in-flight", "256", "--max-queued-bytes", str(16 * 1024 * 1024)),
)
LONG_PATH = "/" + "p" * 7000
RENEWAL_SECONDS = 20.0 if SECONDS >= 200 else 2.0
KEYS = 8
"""So many are accepted at a time: a client may need some renewals to send what it has begun."""
PARTS = 4
"""Between them the load is off, and nothing may be left of it."""
GROWTH = 24 * 1024 * 1024
"""What the coordinator may keep of it: at most 16 MiB are not given back, and code that has run takes some."""
SLOWEST_PROBE_SECONDS = 5.0
"""The machine has few cores, and the clients of the night take most of their time."""
KEPT = 16 * 1024
"""Characters of the log that are kept for the message of a failure."""
WANTED = {
    "lines": ("",),
    "renewed certificates": ("SIGHUP: reloaded tls_cert",),
    "renewed keys": ("SIGHUP: reloaded api_key_file",),
    "refused renewals": ("SIGHUP: reload failed, keeping the old one",),
    "reports": ("SIGUSR1: health:",),
    "abandoned": ("the worker is killed",),
    "lost devices": ("device lost",),
    "shortages": ("out of memory with",),
    "bugs of validators": ("raised builtins.KeyError",),
    "tracebacks": ("Traceback (most recent call last)",),
}
"""What is counted in the log."""
BROKEN = ("never retrieved", "Exception in callback", "Fatal error", "IllegalMove", "AssertionError", "SSL error")
"""What may not be there."""
MAKE = (
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
    *("-days", "2", "-subj", "/CN=localhost"),
)


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class NightServer(Server):
    """A server over TLS, with keys that are renewed, and whose log is read only while `awake`."""

    def __init__(self, folder):
        self.awake = threading.Event()
        self.awake.set()
        self.logged, self.broken = Counter(), []
        self.keys, self.key, self.context = folder / "keys", "key-0", trusting()
        self.accepted = ["key-0"]
        """Those that are in the file, the newest last."""
        self.cert, self.private = folder / "cert.pem", folder / "key.pem"
        self.write_keys()
        self.make_pair()
        files = ("--tls-cert", str(self.cert), "--tls-key", str(self.private), "--api-key-file", str(self.keys))
        super().__init__(folder, *(f"model:{name}" for name in SERVICES), *OPTIONS, *files)

    def write_keys(self):
        self.keys.write_text("\n".join(["admin", *self.accepted]))

    def make_pair(self):
        subprocess.run([*MAKE, "-keyout", self.private, "-out", self.cert], check=True, capture_output=True)

    def _read(self):
        for line in self.process.stdout:
            self.awake.wait()
            for what, texts in WANTED.items():
                self.logged[what] += any(text in line for text in texts)
            if any(text in line for text in BROKEN):
                self.broken.append(line[:1000])
            with self._grown:
                self.output = (self.output + line[:1000])[-KEPT:]
                self._grown.notify_all()
        with self._grown:
            self._ended = True
            self._grown.notify_all()

    def raw(self):
        """A new connection before its handshake; whoever asked for it closes it."""
        return self._connected(socket.socket())

    def wire(self, *, small_buffer=False):
        """A new connection after its handshake; whoever asked for it closes it."""
        # It is wrapped before it is connected: `wrap_socket` forgets a socket that was reset before.
        return Wire(self._connected(self.context.wrap_socket(socket.socket()), small_buffer=small_buffer))

    def _connected(self, sock, *, small_buffer=False):
        try:
            if small_buffer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(PATIENCE_SECONDS)
            sock.connect(("127.0.0.1", self.port))
        except OSError:
            sock.close()
            raise
        return sock

    def client(self, **options):
        return super().client(headers={"X-API-Key": "admin"}, **options)

    def get(self, path):
        """The bytes of a request with the newest key."""
        return request("GET", path, X_API_Key=self.key)

    def post(self, path, body, **headers):
        """The same with a body."""
        return request("POST", path, body, X_API_Key=self.key, **headers)


class Night:
    """What all who take part share: the server, when it is over, and what was seen."""

    def __init__(self, server, seed):
        self.server = server
        self.seed = seed
        self.over = threading.Event()
        self.seen = Counter()
        self.slowest = Counter()
        self.faults = []
        self._lock = threading.Lock()

    def count(self, what, number=1):
        with self._lock:
            self.seen[what] += number

    def timed(self, what, seconds):
        with self._lock:
            self.slowest[what] = max(self.slowest[what], seconds)

    def fault(self, text):
        with self._lock:
            self.faults.append(text)

    def run(self, seconds):
        guests = [kind(self, n) for kind, number in GUESTS.items() for n in range(number)]
        for guest in guests:
            guest.start()
        self.over.wait(seconds)
        self.over.set()
        for guest in guests:
            guest.join(60)
            assert not guest.is_alive(), f"{guest.name} waits for ever"
        self.server.awake.set()


class Guest(threading.Thread):
    """Takes its turns until the night is over; what the server does wrong is an `AssertionError`, and noted."""

    def __init__(self, night, number):
        super().__init__(name=f"{type(self).__name__} {number}", daemon=True)
        self.night = night
        self.server = night.server
        self.chance = random.Random(f"{night.seed} {self.name}")

    def run(self):
        while not self.night.over.is_set():
            try:
                self.turn()
            except OSError as error:
                self.cut(error)
            except Exception as error:  # whatever it is, it is told
                self.night.fault(f"{self.name}: {error!r}")
                self.pause(0.1)

    def turn(self):
        raise NotImplementedError

    def cut(self, error):
        """The connection was cut, which is what a rude client must expect."""
        self.night.count(f"{type(self).__name__}: cut")
        self.pause(0.05)

    def pause(self, least, most=None):
        self.night.over.wait(self.chance.uniform(least, most or least))

    def answered(self, wire, *allowed):
        """The next answer, of a status that may be; None if the connection was cut instead."""
        try:
            answer = wire.answer()
        except AssertionError:
            raise ConnectionResetError("cut") from None
        self.night.count(f"{type(self).__name__}: {answer.status}")
        assert answer.status in allowed, answer
        return answer


class Behaved(Guest):
    """A client that does everything right.

    Each answer must come, and be right. It accepts 503 with Retry-After: no room, no place, no worker in time. Of
    "shaky", whose batches hang, it also accepts 504: somebody else's item hung in its batch; likewise of "fragile",
    whose workers lose their device. Of "outside" it accepts that two workers which came and went have had its item, or
    one, and no other came.
    """

    def __init__(self, night, number):
        super().__init__(night, number)
        self.wire = None
        self.used = 0.0

    def turn(self):
        service = self.chance.choice(["sound", "sound", "shaky", "fragile", "sharing", "outside"])
        numbers = [self.chance.randrange(1, 10_000) for _ in range(self.chance.choice([1, 1, 1, 4]))]
        began = time.monotonic()
        if self.wire is None or began - self.used > 0.5 or self.chance.random() < 0.2:
            self.hang_up()  # one that has been idle for 1 s may be closed for a newcomer
            self.wire = self.server.wire()
        self.wire.send(b"".join(self.asked(service, number) for number in numbers))
        for number in numbers:
            if not self.right(service, number, self.wire.answer()):
                break
        self.used = time.monotonic()
        self.night.timed(f"{service}", self.used - began)
        self.pause(0.0, 0.02)

    def asked(self, service, number):
        options = {"X_Request_Timeout": "3"} if service in MAY_BE_LATE else {}
        return self.server.post(f"/{service}/predict", number, **options)

    def right(self, service, number, answer):
        """Whether the connection goes on after this answer, which must be right."""
        self.night.count(f"{service}: {answer.status}")
        match answer.status:
            case 200:
                assert answer.json() == ANSWERS[service](number), (number, answer)
            case 503:
                assert int(answer.headers["retry-after"]) >= 1, answer
                self.night.count(f"{service}: {answer.json()['detail'][:60]}")
            case 504:
                assert service in MAY_BE_LATE, answer
            case 500:
                assert service == "outside", answer
                assert answer.json()["type"].rpartition(":")[2] in ("worker-lost", "not-ready"), answer
            case _:
                raise AssertionError(answer)
        if answer.headers.get("connection") == "close":
            self.hang_up()
        return self.wire is not None

    def cut(self, error):
        self.night.fault(f"{self.name}: {error!r}")
        self.hang_up()

    def hang_up(self):
        if self.wire is not None:
            self.wire.close()
        self.wire = None

    def run(self):
        super().run()
        self.hang_up()


class Probe(Guest):
    """Asks `/livez`, each time on a new connection; it may never miss an answer."""

    def turn(self):
        began = time.monotonic()
        with contextlib.closing(self.server.wire()) as wire:
            answer = wire.send(request("GET", "/livez")).answer()
        self.night.timed("probe", time.monotonic() - began)
        self.night.count(f"probe: {answer.status}")
        assert answer.status == 200, answer
        self.pause(0.0, 0.05)

    def cut(self, error):
        self.night.fault(f"{self.name}: {error!r}")


class Renewal(Guest):
    """Has certificate and keys read again; each second time one of them is bad, and the old stays."""

    def turn(self):
        self.pause(RENEWAL_SECONDS)
        key = f"key-{self.chance.randrange(10**9)}"
        self.server.accepted = [*self.server.accepted, key][-KEYS:]
        self.server.make_pair()
        self.server.write_keys()
        os.kill(self.server.pid, signal.SIGHUP)
        self.server.until(lambda: self.shown() and self.taken(key), "certificate and key to be renewed")
        self.server.key = key
        self.night.count("renewals")
        if self.chance.random() < 0.5:
            self.break_one()

    def shown(self):
        """Whether a new connection gets the new certificate."""
        with contextlib.suppress(OSError), contextlib.closing(self.server.wire()) as wire:
            return wire.sock.getpeercert(binary_form=True) == ssl.PEM_cert_to_DER_cert(self.server.cert.read_text())
        return False

    def taken(self, key):
        """Whether the server takes this key."""
        with contextlib.suppress(OSError), contextlib.closing(self.server.wire()) as wire:
            return wire.send(request("GET", "/metrics", X_API_Key=key)).answer().status == 200
        return False

    def break_one(self):
        """Renew with a file that cannot be used; nobody may notice."""
        self.pause(0.2)
        path = self.chance.choice([self.server.cert, self.server.private, self.server.keys])
        path.write_bytes(b"")
        os.kill(self.server.pid, signal.SIGHUP)
        self.night.count("bad renewals")


class Reports(Guest):
    """Asks for the report of health and stacks."""

    def turn(self):
        self.pause(1.0, 8.0)
        os.kill(self.server.pid, signal.SIGUSR1)
        self.night.count("reports asked")


class SleepyReader(Guest):
    """Lets the log lie unread, and reads it again."""

    def turn(self):
        self.server.awake.clear()
        self.pause(0.5, min(15.0, SECONDS / 8))
        self.server.awake.set()
        self.pause(0.5, 3.0)


class Talking(Guest):
    """Asks for paths that do not exist, each of which is a long line in the access log."""

    def turn(self):
        count = self.chance.randrange(50, 300)
        with contextlib.closing(self.server.wire()) as wire:
            for _ in range(count):
                wire.send(self.server.get(LONG_PATH))
                self.answered(wire, 404, 503)
        self.pause(0.2, 1.0)


class Wrong(Guest):
    """Sends what is no request, or one that nobody could answer."""

    def turn(self):
        post = partial(self.server.post, "/shaky/predict")
        wrong = [
            b"\x16\x03\x01nonsense\r\n\r\n",
            request("BREW", "/"),
            post(b"[" * 50_000),
            post(b"\xff"),
            post(b"[1,"),
        ]
        with contextlib.closing(self.server.wire()) as wire:
            self.answered(wire.send(self.chance.choice(wrong)), 400, 401, 405, 422, 501, 503, 504)
        self.pause(0.0, 0.1)


class Raising(Guest):
    """Sends what raises, with messages of up to 1 MB; five in a row, and more."""

    def turn(self):
        with contextlib.closing(self.server.wire()) as wire:
            for _ in range(self.chance.choice([5, 5, 8])):
                size = self.chance.choice([10, 10_000, 1_000_000])
                wire.send(self.server.post("/shaky/predict", -size, X_Request_Timeout="5"))
                self.answered(wire, 500, 503, 504)
        self.pause(0.05, 0.5)


class Hanging(Guest):
    """Sends what never ends, and does not wait for it."""

    def turn(self):
        with contextlib.closing(self.server.wire()) as wire:
            path, body = self.chance.choice([("/shaky/predict", 0), ("/shaky/batch", [0, 0, 0])])
            wire.send(self.server.post(path, body, X_Request_Timeout="0.3"))
            if self.chance.random() < 0.7:
                self.answered(wire, 503, 504, 207)
        self.pause(1.0, 6.0)


class Unread(Guest):
    """Asks for large answers, one after the other, and reads little or nothing of them."""

    def turn(self):
        with contextlib.closing(self.server.wire(small_buffer=True)) as wire:
            for _ in range(self.chance.randrange(1, 5)):
                wire.send(self.server.post("/sound/predict", -self.chance.randrange(1_000_000, 8_000_000)))
            self.night.count("large answers asked")
            self.pause(0.1, 4.0)
            if self.chance.random() < 0.3:
                self.answered(wire, 200, 503)
        self.pause(0.0, 2.0)


class Pipelining(Guest):
    """Sends many at once, good and bad, and reads them all."""

    def turn(self):
        numbers = [self.chance.choice([self.chance.randrange(1, 99), -20]) for _ in range(self.chance.randrange(2, 60))]
        with contextlib.closing(self.server.wire()) as wire:
            wire.send(b"".join(self.server.post("/shaky/predict", x, X_Request_Timeout="3") for x in numbers))
            for number in numbers:
                answer = self.answered(wire, *([200] if number > 0 else [500]), 503, 504)
                assert answer.status != 200 or answer.json() == number + 1, (number, answer)
        self.pause(0.05, 0.5)


class Many(Guest):
    """Sends client batches; each outcome is right, or one that may be."""

    def turn(self):
        numbers = [self.chance.randrange(1, 10_000) for _ in range(self.chance.randrange(1, 300))]
        service = self.chance.choice(["sound", "shaky"])
        if service == "shaky":
            numbers[0] = -1000
        with contextlib.closing(self.server.wire()) as wire:
            wire.send(self.server.post(f"/{service}/batch", numbers, X_Request_Timeout="5"))
            answer = self.answered(wire, 200, 207, 503)
        if answer.status != 503:
            outcomes = answer.json()["outcomes"]
            assert len(outcomes) == len(numbers)
            for number, outcome in zip(numbers, outcomes, strict=True):
                self.check(service, number, outcome)
        self.pause(0.05, 0.5)

    def check(self, service, number, outcome):
        if "result" in outcome:
            assert number > 0
            assert outcome["result"] == ANSWERS[service](number), (number, outcome)
        else:
            self.night.count(f"Many: item {outcome['error']['status']} of {service}")
            assert outcome["error"]["status"] in (503, 504) or number < 0, (number, outcome)


class Poisoning(Guest):
    """Sends what loses the device for good, or has no room beside others, among numbers; each other one is right."""

    def turn(self):
        items = [self.chance.randrange(1, 10_000) for _ in range(self.chance.randrange(1, 40))]
        items.insert(self.chance.randrange(len(items)), self.chance.choice(["giant", "poison"]))
        with contextlib.closing(self.server.wire()) as wire:
            wire.send(self.server.post("/fragile/batch", items, X_Request_Timeout="10"))
            answer = self.answered(wire, 200, 207, 503)
        if answer.status != 503:
            for item, outcome in zip(items, answer.json()["outcomes"], strict=True):
                self.check(item, outcome)
        self.pause(0.5, 5.0)

    def check(self, item, outcome):
        of = item if isinstance(item, str) else "number"
        if "result" in outcome:
            assert of != "poison"
            assert outcome["result"] == item * 2, (item, outcome)
            self.night.count(f"Poisoning: {of} is right")
        else:
            status = outcome["error"]["status"]
            self.night.count(f"Poisoning: {of} has {status}")
            if status not in (503, 504):
                assert (of, outcome["error"]["type"]) == ("poison", "urn:penstock:problem:stage-failed"), outcome


class Building(Guest):
    """Sends dataclasses with and without what has a default, and what their check refuses, and finds a bug in."""

    def turn(self):
        houses = [self.house() for _ in range(self.chance.randrange(1, 30))]
        with contextlib.closing(self.server.wire()) as wire:
            wire.send(self.server.post("/houses/batch", houses))
            answer = self.answered(wire, 200, 207, 503)
        if answer.status != 503:
            assert b"secret" not in answer.body, answer
            for house, outcome in zip(houses, answer.json()["outcomes"], strict=True):
                self.check(house, outcome)
        self.pause(0.0, 0.2)

    def house(self):
        rooms = self.chance.choice([0, -1, *range(1, 9)])
        return {"rooms": rooms} | self.chance.choice([{}, {"garden": 0.5}, {"colours": []}])

    def check(self, house, outcome):
        rooms = house["rooms"]
        if "result" in outcome:
            whole = {"garden": 10.0, "colours": ["white"], **house, "area": 20.0 * rooms}
            assert rooms > 0
            assert outcome["result"] == whole, (house, outcome)
        else:
            status = outcome["error"]["status"]
            assert status == 503 or status == {0: 500, -1: 422}.get(rooms), (house, outcome)
            self.night.count(f"Building: item {status}")


class Passing(Guest):
    """Attaches as a worker, works for a moment, and leaves, one way or another."""

    def turn(self):
        with contextlib.closing(Peer(socket.socket(socket.AF_UNIX))) as peer:
            peer.sock.connect(str(self.server.folder / "outside.sock"))
            peer.control(Kind.HELLO, {"codecs": ["json", "msgpack"]})
            peer.message(Kind.LAUNCH)
            peer.control(Kind.READY)
            self.night.count("workers attached")
            peer.sock.settimeout(0.1)
            with contextlib.suppress(TimeoutError):
                for _ in range(self.chance.randrange(5)):
                    self.work(peer, peer.frame())
            peer.sock.settimeout(PATIENCE_SECONDS)
            self.leave(peer)

    def work(self, peer, batch):
        assert batch.kind is Kind.BATCH, batch.kind
        kinds = {Codec.JSON: msgspec.json, Codec.MSGPACK: msgspec.msgpack}
        results = [
            kinds[out].encode(ANSWERS["outside"](kinds[codec].decode(payload)))
            for payload, codec, out in zip(batch.payloads, batch.codecs_in, batch.codecs_out, strict=True)
        ]
        peer.send(encode_answers(batch.frame_id, 0.0, len(results), batch.ids, results, [0] * len(results)))

    def leave(self, peer):
        match self.chance.randrange(4):
            case 0:
                peer.sock.sendall(b"junk" * 16)
                while (frame := peer.frame()) and frame.kind is not Kind.FAILED:
                    continue
            case 1:
                pass
            case _:
                peer.control(Kind.DETACH)
                while batch := peer.frame():
                    self.work(peer, batch)


class Crowd(Guest):
    """Opens more connections than there may be, and says nothing, or half of something."""

    def turn(self):
        with contextlib.ExitStack() as opened:
            for _ in range(self.chance.choice([MAX_CONNECTIONS // 2, MAX_CONNECTIONS, MAX_CONNECTIONS * 2, 350])):
                opened.enter_context(contextlib.closing(self.server.raw()))
                self.night.count("silent connections")
            for _ in range(self.chance.randrange(0, 10)):
                wire = opened.enter_context(contextlib.closing(self.server.wire()))
                wire.send(self.server.post("/sound/predict", 1)[:-1])
            self.pause(0.2, 3.0)
        self.pause(0.5, 4.0)


class Leaving(Guest):
    """Hangs up in mid-head, mid-body or mid-answer."""

    def turn(self):
        whole = self.server.post(self.chance.choice(["/sound/batch", "/shaky/predict"]), list(range(1, 3000)))
        wire = self.server.wire().send(whole[: self.chance.randrange(1, len(whole) + 1)])
        self.chance.choice([wire.drop, wire.close])()
        self.night.count("hung up")
        self.pause(0.0, 0.1)


class Killer(Guest):
    """Kills a worker that is up, as the kernel does when memory runs out.

    It leaves those of "fragile" to what loses their devices: who dies of it may not die once more.
    """

    def turn(self):
        self.pause(2.0, 6.0)
        with contextlib.closing(self.server.wire()) as wire:
            health = self.answered(wire.send(self.server.get("/health")), 200, 503)
        if health.status == 503:  # there is no place for it
            return
        name = self.chance.choice([name for name in SERVICES if name not in UNHARMED])
        stages = health.json()["services"][name]["stages"].values()
        up = [worker["pid"] for stage in stages for worker in stage["workers"] if worker["state"] in ("idle", "busy")]
        if up:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.chance.choice(up), signal.SIGKILL)
                self.night.count("kills")


GUESTS = {
    Behaved: 3,
    Probe: 1,
    Renewal: 1,
    Reports: 1,
    SleepyReader: 1,
    Talking: 1,
    Wrong: 1,
    Raising: 1,
    Hanging: 1,
    Unread: 2,
    Pipelining: 1,
    Many: 1,
    Poisoning: 1,
    Building: 1,
    Passing: 2,
    Crowd: 1,
    Leaving: 1,
    Killer: 1,
}


class Rest:
    """What the server holds once the load is off and everything is settled."""

    def __init__(self, server, at_start):
        server.hang_up()
        for name in ("penstock_items_in_flight", "penstock_reserved_bytes", "penstock_unsent_response_bytes"):
            server.until(lambda name=name: server.metric(name) == 0, f"{name} to be 0", limit=60)
        server.until(lambda: server.metric("penstock_stage_workers_up") == WORKERS, "all workers to be up", limit=60)
        for service in SERVICES:
            accepted = server.metric("penstock_items_accepted_total", service=service)
            assert accepted == server.metric("penstock_items_ended_total", service=service)
        self.accepted = server.metric("penstock_items_accepted_total")
        self.restarts = server.metric("penstock_stage_worker_restarts_total")
        self.abandoned = server.metric("penstock_stage_orphan_kills_total")
        self.devices_lost = server.metric("penstock_stage_devices_lost_total")
        self.shortages = server.metric("penstock_stage_out_of_memory_total")
        self.bugs, self.invalid = (
            server.metric("penstock_items_ended_total", service="houses", ending=ending)
            for ending in ("failed", "invalid")
        )
        what = "what dead workers shared to be given back"
        until_now(lambda: len(shared(server.folder)) <= 3, what, 60, lambda: str(notes(server.folder / "shared")))
        self.dropped = server.metric("penstock_log_lines_dropped_total")
        server.hang_up()
        self.files = self.settled_files(server)
        # By now those that hung alone have been abandoned.
        server.until(lambda: server.metric("penstock_stage_workers_up") == WORKERS, "all workers to be up", limit=60)
        self.workers = server.workers()
        self.files_of_workers = [descriptors(pid) for pid in self.workers]
        server.hang_up()
        self.peak = resident(server.pid)
        server.until(lambda: resident(server.pid) < at_start + GROWTH, "the memory to be given back", limit=120)
        self.memory = resident(server.pid)

    @staticmethod
    def settled_files(server):
        """The open files of the coordinator by their kinds, once no connection is left.

        Each service opens a timer the first time that it needs one, and keeps it.
        """
        found = []

        def steady():
            found.append(descriptors(server.pid))
            time.sleep(0.05)
            return len(found) > 20 and len(set(found[-20:])) == 1

        server.until(steady, "the descriptors to be given back", limit=60)
        links = [path.readlink() for path in Path(f"/proc/{server.pid}/fd").iterdir()]
        return Counter(re.sub(r"\d+", "", str(link)) for link in links if "timerfd" not in str(link))


def shared(folder):
    """Of all that the workers of "sharing" have had: the shared memory that is there, and the children that run."""
    told = notes(folder / "shared")
    memories = [memory for memory, *_ in told if Path(memory).exists()]
    return memories + [child for _, *children in told for child in children if running(child)]


def stop_with_a_signal_that_comes_twice(server):
    """End the server as `timeout` does, while a worker has a request: that is answered."""
    with (
        contextlib.closing(server.wire()) as wire,
        contextlib.closing(Peer(socket.socket(socket.AF_UNIX))) as peer,
    ):
        peer.sock.connect(str(server.folder / "outside.sock"))
        peer.control(Kind.HELLO, {"codecs": ["json", "msgpack"]})
        peer.message(Kind.LAUNCH)
        peer.control(Kind.READY)
        wire.send(server.post("/outside/predict", 1))
        batch = peer.expect(Kind.BATCH)
        server.signal(signal.SIGTERM)
        server.signal(signal.SIGTERM)
        server.wait_for("draining")
        peer.send(encode_answers(batch.frame_id, 0.0, 1, batch.ids, [b"5"], [0]))
        answer = wire.answer()
        assert (answer.status, answer.json()) == (200, 5), answer
    assert server.wait() == 0, server.output


@contextlib.contextmanager
def serving_at_night(folder):
    write_module(folder, SOURCE)
    (folder / "shared").touch()  # here, since the module's umask gives nobody a right to what is made there
    server = NightServer(folder)
    try:
        yield server.ready()
        server.hang_up()
        stop_with_a_signal_that_comes_twice(server)
        assert shared(folder) == []
    finally:
        server.awake.set()
        server.hang_up()
        server.destroy()


def figures(nights, rests, seconds, server):
    """What was seen, the slowest times, and both as text."""
    seen, slowest = Counter(), Counter()
    for night in nights:
        seen.update(night.seen)
        slowest |= night.slowest
    end = rests[-1]
    lines = [f"seed {SEED}, {seconds:.0f} s; slowest: " + ", ".join(f"{k} {v:.2f} s" for k, v in slowest.items())]
    lines += [f"  {what}: {number}" for what, number in sorted(seen.items())]
    lines += [
        f"{end.devices_lost:.0f} devices lost, {end.shortages:.0f} shortages of memory",
        f"{end.bugs:.0f} bugs of a check, {end.invalid:.0f} refused by it",
        f"{len(notes(server.folder / 'shared'))} workers had shared memory",
        f"log: {dict(server.logged)}, {end.dropped:.0f} dropped; broken: {server.broken}",
        f"{end.accepted:.0f} items accepted and ended, {end.restarts:.0f} restarts, {end.abandoned:.0f} abandoned",
        "coordinator, MiB: " + ", ".join(f"{rest.peak / 2**20:.1f} -> {rest.memory / 2**20:.1f}" for rest in rests),
        f"descriptors: {[rest.files.total() for rest in rests]}",
        f"of workers: {[rest.files_of_workers for rest in rests]}",
    ]
    return seen, slowest, "\n".join(lines)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is needed to make certificates")
def test_a_night_of_all_troubles_at_once_leaves_everybody_answered_and_nothing_behind(tmp_path, capsys):
    with capsys.disabled():
        print(f"\nPENSTOCK_NIGHT_SEED={SEED}", flush=True)  # noqa: T201  # to repeat it
    began = time.monotonic()
    with serving_at_night(tmp_path) as server:
        at_start = resident(server.pid)
        nights, rests = [Night(server, f"{SEED} {part}") for part in range(PARTS)], []
        for night in nights:
            night.run(SECONDS / PARTS)
            rests.append(Rest(server, at_start))
        seen, slowest, text = figures(nights, rests, time.monotonic() - began, server)
        with capsys.disabled():
            print(text, flush=True)  # noqa: T201  # the figures are what it is run for
        warm, end = rests[0], rests[-1]
        assert [fault for night in nights for fault in night.faults] == []
        assert seen["sound: 200"] > SECONDS
        assert seen["probe: 200"] > SECONDS
        assert slowest["probe"] < SLOWEST_PROBE_SECONDS
        assert all(seen[f"{service}: 200"] > SECONDS / 10 for service in ANSWERS)
        assert end.restarts - end.devices_lost >= seen["kills"] * 0.9
        assert end.bugs == seen["Building: item 500"] > 0 < seen["Building: item 422"] == end.invalid
        assert seen["Poisoning: poison has 500"] > 0 < end.devices_lost
        assert seen["Poisoning: giant is right"] > 0 < end.shortages
        assert seen["workers attached"] > SECONDS
        assert seen["kills"] > 0 < end.abandoned
        assert server.broken == []
        assert end.files == warm.files
        assert end.files_of_workers == warm.files_of_workers
    assert not any(map(running, end.workers))
