"""Publishers that are killed or stopped wherever they are, and many at once, leave a model directory whole."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

import penstock
from night import histories
from penstock.artifact.model_directory import find_artifact
from penstock.artifact.opened_artifact import open_artifact, read_digest
from penstock.artifact.publishing import publish_artifact, roll_back
from penstock.hosting.folder_lock import FolderLocked, folder_lock
from tiny_artifacts import write_artifact

POINTS = ["stage_begun", "half_written", "synced", "verified", "version_renamed", "current_replaced"]
LOCKED = ["version_renamed", "current_replaced"]
"""Those that are passed while the lock is held."""
OFTEN = {("half_written", "a"), ("version_renamed", "a"), ("current_replaced", "")}
"""Where publishers are killed by day, before, in and after what makes a version; the others a night kills."""
ROUNDS = histories(200)
LONG = 60.0

FORKING = """
import json, os, sys
from penstock.artifact.publishing import publish_artifact, roll_back

for line in sys.stdin:
    faults, action, *given = json.loads(line)
    child = os.fork()
    if not child:
        os.environ["PENSTOCK_FAILPOINTS"] = faults
        done = publish_artifact(*given) if action == "publish" else roll_back(*given)
        os._exit(done.version)
    ended = False
    while not ended:
        _, status = os.waitpid(child, os.WUNTRACED)
        ended = not os.WIFSTOPPED(status)
        print(json.dumps([child, os.waitstatus_to_exitcode(status) if ended else "stopped"]), flush=True)
"""
"""For each line a process of its own, whose end or stop is told.  They are forked to be quick: one import for all."""

WORKING = """
import json, sys
from hashlib import sha256
from pathlib import Path
from penstock.artifact.publishing import publish_artifact, roll_back
from penstock.errors import ArtifactInvalid, ConfigError

def go_back():
    while True:
        try:
            return roll_back(model_dir).version
        except ConfigError:
            return 0
        except ArtifactInvalid as error:  # a publisher was quicker
            assert "was changed by another process" in str(error)

def change(artifact, number):  # as another training would make another model
    manifest = json.loads((artifact / "manifest.json").read_bytes())
    manifest["metadata"] = {"number": number}
    content = json.dumps(manifest).encode()
    (artifact / "manifest.json").write_bytes(content)
    (artifact / "DIGEST").write_text(sha256(content).hexdigest() + "\\n")

model_dir, artifact = sys.argv[1], sys.argv[2:]
for number, line in enumerate(sys.stdin):
    if artifact:
        change(Path(artifact[0]), number)
        print(publish_artifact(artifact[0], model_dir).version, flush=True)
        continue
    print(go_back(), flush=True)
"""
"""For each line one publish, or one rollback; the number is told, or 0 where there is nothing to go back to."""

READING = """
import os, select, sys
from penstock.artifact.model_directory import find_artifact
from penstock.artifact.opened_artifact import read_digest

os.nice(10)  # it hardly rests
seen = 0
while not select.select([sys.stdin], [], [], 0.002)[0]:
    found = find_artifact(sys.argv[1])
    assert read_digest(found.path) == found.digest
    seen += 1
print(seen, flush=True)
"""
"""Opens `CURRENT` and the manifest that it names again and again, until its stdin ends."""


@contextlib.contextmanager
def program(text, *given):
    """A process that runs `text`; it, and all that it forked, is gone at the end."""
    environment = {**os.environ, "PYTHONPATH": os.fspath(Path(penstock.__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", text, *map(os.fspath, given)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


class Publishers:
    """Processes that publish or roll back once, with a fault point armed."""

    def __init__(self, process):
        self.process = process

    def begin(self, faults, action, *given):
        """Start one, and wait until it has ended or stopped: its pid, and its exit code or "stopped"."""
        self.process.stdin.write(json.dumps([faults, action, *map(os.fspath, given)]) + "\n")
        self.process.stdin.flush()
        return self.next()

    def next(self):
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def publishers():
    with program(FORKING) as process:
        yield Publishers(process)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    for name in "abc":
        write_artifact(folder / name, name=name)
    return lambda name: folder / name


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def check_directory(there, names, actions=None):
    """The versions are `names`, in order, each whole and published once; there is no stage; `CURRENT` is right."""
    record = json.loads((there / "CURRENT").read_bytes())
    published = [entry for entry in record["history"] if entry["action"] == "publish"]
    assert [entry["version"] for entry in published] == list(range(1, len(names) + 1))
    assert names_in(there / "versions") == sorted(map(str, range(1, len(names) + 1)))
    for entry, name in zip(published, names, strict=True):
        opened = open_artifact(there / "versions" / str(entry["version"]), digest=entry["digest"])
        assert opened.manifest.name == name
    assert (record["version"], record["digest"]) == tuple(record["history"][-1][key] for key in ("version", "digest"))
    assert [entry["action"] for entry in record["history"]] == (actions or ["publish"] * len(names))


@pytest.mark.parametrize(
    ("point", "earlier"),
    [
        pytest.param(point, earlier, marks=() if (point, earlier) in OFTEN else pytest.mark.night)
        for point in POINTS
        for earlier in ("", "a")
    ],
)
def test_after_a_publisher_was_killed_the_next_leaves_one_version_of_each(publishers, saved, tmp_path, point, earlier):
    there = tmp_path / "killed"
    for name in earlier:
        publish_artifact(saved(name), there)
    before = contents(there / "versions")
    assert publishers.begin(f"{point}=kill", "publish", saved("b"), there)[1] == -signal.SIGKILL
    assert earlier == "" or find_artifact(there).version == (2 if point == "current_replaced" else 1)
    for following in "bc":
        copy = tmp_path / following
        shutil.copytree(there, copy)
        done = publish_artifact(saved(following), copy)
        names = [*earlier, *("b" if point == "current_replaced" or following == "b" else ""), *following.strip("b")]
        assert (done.version, done.repeated) == (len(names), point == "current_replaced" and following == "b")
        check_directory(copy, names)
        assert contents(copy / "versions").items() >= before.items()


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if point == "verified" else pytest.mark.night)
        for point in POINTS
        if point not in LOCKED
    ],
)
def test_a_publisher_that_was_stopped_publishes_after_those_that_came_between(publishers, saved, tmp_path, point):
    there = tmp_path / "stopped"
    publish_artifact(saved("a"), there)
    before = contents(there / "versions")
    pid, state = publishers.begin(f"{point}=stop", "publish", saved("b"), there)
    assert state == "stopped"
    assert publish_artifact(saved("c"), there).version == 2
    assert roll_back(there).version == 1
    os.kill(pid, signal.SIGCONT)
    assert publishers.next() == [pid, 3]
    check_directory(there, "acb", ["publish", "publish", "rollback", "publish"])
    assert contents(there / "versions").items() >= before.items()


@contextlib.contextmanager
def publishing(artifact, there):
    """Another publish, in a thread; what it answered is in the list at the end."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(publish_artifact(artifact, there)))
    thread.start()
    yield answers
    thread.join(LONG)
    assert not thread.is_alive()


def lock_is_held(there):
    try:
        with folder_lock(there, wait=0.0):
            return False
    except FolderLocked:
        return True


@pytest.mark.parametrize("point", [LOCKED[0], pytest.param(LOCKED[1], marks=pytest.mark.night)])
def test_others_wait_for_a_publisher_that_was_stopped_with_the_lock(publishers, saved, tmp_path, point):
    there = tmp_path / "stopped"
    publish_artifact(saved("a"), there)
    pid, state = publishers.begin(f"{point}=stop", "publish", saved("b"), there)
    assert state == "stopped"
    assert lock_is_held(there)
    assert (there / ".lock").read_text().startswith(f"process {pid} on ")
    with publishing(saved("c"), there) as answers:
        os.kill(pid, signal.SIGCONT)
        assert publishers.next() == [pid, 2]
    assert answers[0].version == 3
    check_directory(there, "abc")


@pytest.mark.parametrize("point", [pytest.param(LOCKED[0], marks=pytest.mark.night), LOCKED[1]])
def test_others_go_on_when_a_publisher_with_the_lock_is_killed(publishers, saved, tmp_path, point):
    there = tmp_path / "killed"
    publish_artifact(saved("a"), there)
    pid, _ = publishers.begin(f"{point}=stop", "publish", saved("b"), there)
    with publishing(saved("c"), there) as answers:
        os.kill(pid, signal.SIGKILL)
        assert publishers.next() == [pid, -signal.SIGKILL]
    names = "abc" if point == "current_replaced" else "ac"
    assert answers[0].version == len(names)
    check_directory(there, names)


@pytest.mark.parametrize("point", [pytest.param("stage_begun", marks=pytest.mark.night), "current_replaced"])
def test_a_rollback_that_was_killed_is_done_or_not(publishers, saved, tmp_path, point):
    there = tmp_path / "killed"
    for name in "ab":
        publish_artifact(saved(name), there)
    assert publishers.begin(f"{point}=kill", "rollback", there)[1] == -signal.SIGKILL
    done = point == "current_replaced"
    assert find_artifact(there).version == (1 if done else 2)
    publish_artifact(saved("c"), there)
    check_directory(there, "abc", ["publish", "publish", *(["rollback"] if done else []), "publish"])


@pytest.fixture
def in_memory(tmp_path):
    """A folder in memory where there is one: thousands of files that are synced to a disk take long on a busy one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


def test_two_publishers_and_a_rollback_at_once_are_one_after_the_other_for_every_reader(tmp_path, in_memory):
    there = in_memory / "models"
    for name in ("first", "left", "right"):
        write_artifact(tmp_path / name, name=name)
    publish_artifact(tmp_path / "first", there)
    before = contents(there / "versions")
    answers = {"left": [], "right": [], "rollback": []}
    with contextlib.ExitStack() as at_end:
        reader = at_end.enter_context(program(READING, there))
        working = {
            name: at_end.enter_context(program(WORKING, there, *([] if name == "rollback" else [tmp_path / name])))
            for name in answers
        }
        for _ in range(ROUNDS):
            for process in working.values():
                process.stdin.write("\n")
                process.stdin.flush()
            for name, process in working.items():
                answers[name].append(int(process.stdout.readline()))
        reader.stdin.close()
        assert int(reader.stdout.readline()) > 20

    history = json.loads((there / "CURRENT").read_bytes())["history"]
    published = [entry["version"] for entry in history if entry["action"] == "publish"]
    assert published == list(range(1, 2 * ROUNDS + 2))
    assert sorted([1, *answers["left"], *answers["right"]]) == published
    assert names_in(there / "versions") == sorted(map(str, published))
    assert contents(there / "versions").items() >= before.items()
    back = [entry["version"] for entry in history if entry["action"] == "rollback"]
    assert back == [version for version in answers["rollback"] if version]
    check_rollbacks(history)
    same = model_files(there / "versions" / "1")
    for entry in history:
        if entry["action"] == "publish":
            version = there / "versions" / str(entry["version"])
            assert (read_digest(version), model_files(version)) == (entry["digest"], same)


def model_files(artifact):
    """What these artifacts have in common: all but the manifest."""
    return {
        path: content for path, content in contents(artifact).items() if path.name not in ("manifest.json", "DIGEST")
    }


def check_rollbacks(history):
    """Each went to what was current before, as if nothing had happened at the same time."""
    stack = []
    for entry in history:
        if entry["action"] == "publish":
            stack.append(entry["version"])
        else:
            stack.pop()
            assert entry["version"] == stack[-1]
