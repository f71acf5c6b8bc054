"""The documentation is held to what it says: its programs run, its answers come, its references are complete.

A comment before a block says what a reader does with it, and the blocks of a page are done in their order, in a
folder of their own:

    <!-- file: NAME -->       write it (a file that another page defined is there already)
    <!-- run -->              run it; a ``text`` block right after it is what it prints
    <!-- program: ARGS -->    run `python ARGS`; likewise
    <!-- check: SERVICE -->   `penstock check` finds nothing wrong; a ``text`` block right after it is what it prints on
                              80 columns, whatever time it takes
    <!-- serve: SERVICE -->   serve it until another is served (with --reload a file that is written comes to be
                              served); every `curl` from here on is asked, and a ``json`` block
                              after one is its answer, where "..." stands for anything
    <!-- client -->           run it against that server
    <!-- shell -->            run each line in a shell; none may fail.  A ``text`` block right after it is what the last
                              line prints, and so are a ``json`` block and a file: ``ini``, ``yaml``, ``nginx``,
                              ``haproxy``
    <!-- fails -->            run its one line, whose exit status is 1
    <!-- fails: TEXT -->      likewise; TEXT is in the last line that it writes to standard error
    <!-- work: ARGS -->       `penstock consume ARGS` in the background, until it works
    <!-- kill -->             once a job has succeeded, that one and its workers are killed
    <!-- metrics -->          lines that stand in the answer to the `curl` before

A page with `<!-- frameworks: NAMES -->` is read in `tests/export`, where these are installed.  One with
`<!-- artifacts: PATHS -->` finds artifacts there, each of which answers otherwise, and with
`<!-- published: MODEL_DIR PATHS -->` some of them are published, in their order.

A picture, behind `<!-- picture: NAME -->`, is what `docs/pictures.py` draws from the sources.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import get_args, get_type_hints

import httpx
import pytest
import yaml
from programs import MarkedProgram
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from served import Server
from waiting import until_now

import penstock as ps
import pictures
from fake_work import Bench, fake_service
from layer_rules import parsed, read_tree
from penstock import client as ps_client
from penstock import embeddings as ps_embeddings
from penstock import errors as ps_errors
from penstock import jobs as ps_jobs
from penstock import stages as ps_stages
from penstock.artifact.manifest import BatchEntry, FileEntry, GraphEntry, Lookup, Manifest, ReferenceEntry, TableEntry
from penstock.artifact.publishing import publish_artifact
from penstock.cli import queue_url
from penstock.cli.config_files.keda_object import ScalingDescription, scaled_object
from penstock.cli.main import _parser
from penstock.cli.options import CommandOptions
from penstock.codec import media_types
from penstock.config import ArtifactOptions
from penstock.core.batching import Reason
from penstock.core.counters import INLINE_REASONS, NOT_READY
from penstock.core.state import State
from penstock.embeddings.shards import Shard
from penstock.embeddings.training_store import TrainingStore
from penstock.errors import REFUSAL_REASONS
from penstock.features.kinds import Feature
from penstock.features.tensors import TensorSpec
from penstock.hosting import fault_points
from penstock.hosting.fault_log import FaultLog
from penstock.hosting.service_metrics import ENDINGS
from penstock.jobs.job import Attempt, AttemptError, Job, Stats
from penstock.jobs.job_metrics import JobCollector
from penstock.jobs.rules.attempts import FailureCause
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.stores import urls
from penstock.jobs.submitting import JobQueue
from penstock.jobs.work_options import QueueOptions, WorkOptions
from penstock.option_fields import environment_name
from penstock.server import cors
from penstock.server.app import App
from penstock.server.pages import jobs_document
from penstock.server.status import JOB_KINDS, KINDS, Problems
from penstock.testing.virtual_clock import VirtualClock
from penstock.training.run_status import PhaseStatus, RunState, RunStatus, TaskError, WorkerStatus
from tiny_artifacts import ITEM, USER, write_artifact, write_tables

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
RENAMED = DOCS / "reference" / "renamed.md"
"""The page with names of before, which `test_renamed.py` holds to those of today."""
SMOKE = [ROOT / "README.md", DOCS / "tutorial" / "first-service.md", DOCS / "tutorial" / "first-queue.md"]
"""The pages that somebody new does first."""
PENSTOCK = Path(sys.executable).parent / "penstock"
DEFAULT_URL = "http://127.0.0.1:8000"
START_LIMIT = 40.0  # seconds; generous, since the machine may be busy with other tests
PROGRAM_LIMIT = 50.0
"""Seconds that a program of a page may take."""
FILES = ("ini", "yaml", "nginx", "haproxy")
"""Kinds of blocks that are whole files, which a command prints."""
OF_PAGES = ("picture", "frameworks", "artifacts", "published")
"""Comments that say something of a page, and not of the block behind them."""


@dataclasses.dataclass
class Block:
    """A fenced block, and the comment before it."""

    kind: str
    text: str
    verb: str
    argument: str


@functools.cache
def blocks(page: Path) -> list[Block]:
    found, directives, fence = [], [], None
    for line in page.read_text().splitlines():
        comment = re.fullmatch(r"<!-- (\w+)(?:: (.+?))? -->", line)
        if fence is not None:
            if line == "```":
                text = "\n".join(fence[1:]) + "\n"
                # A file that is also run is two things to do with one block.
                for verb, argument in directives or [("", "")]:
                    found.append(Block(fence[0], text, verb, argument))
                fence, directives = None, []
            else:
                fence.append(line)
        elif line.startswith("```"):
            fence = [line[3:]]
        elif comment and comment[1] not in OF_PAGES:
            directives.append((comment[1], comment[2] or ""))
    assert fence is None, f"{page.name}: a block is not closed"
    return found


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


def each(pages: list[Path]) -> pytest.MarkDecorator:
    """A case for each page; those whose programs `make test` runs have the mark `smoke`."""
    marks = {page: [pytest.mark.smoke] for page in SMOKE}
    return pytest.mark.parametrize("page", [pytest.param(p, id=relative(p), marks=marks.get(p, ())) for p in pages])


def every_page_keeps(rule: Callable[[Path], Iterable[str]]) -> None:
    """Fail with everything that `rule` objects to in any page, each on a line of its own."""
    found = [f"{relative(page)}: {why}" for page in PAGES for why in rule(page)]
    assert not found, "\n".join(["offenders:", *found])


# -- what a reader does ---------------------------------------------------------------------------------------------


def shared_files() -> dict[str, str]:
    """Every file of the documentation, as the first page that has it says."""
    files: dict[str, str] = {}
    for page in PAGES:
        for block in blocks(page):
            if block.verb == "file":
                files.setdefault(block.argument, block.text)
    return files


@contextmanager
def served(arguments: str, folder: Path) -> Iterator[Server]:
    """`penstock serve` on a free port; it must end well on SIGTERM."""
    server = Server(folder, *shlex.split(arguments), "--port", "0")
    try:
        yield server.ready()
        server.hang_up()
        server.stop()
    finally:
        server.hang_up()
        server.destroy()


def curl(command: str, client: httpx.Client) -> httpx.Response:
    """Ask what the `curl` command asks; a flag that is not known here fails the test."""
    words = iter(shlex.split(command)[1:])
    headers, body, url = {}, None, ""
    for word in words:
        if word == "-H":
            name, _, value = next(words).partition(":")
            headers[name] = value.strip()
        elif word == "-d":
            body = next(words)
        elif word != "-s":
            url = word
    assert url.startswith(DEFAULT_URL), command
    assert body is None or "content-type" in headers, f"curl would send a form: {command}"
    method = "GET" if body is None else "POST"
    return client.request(method, url.removeprefix(DEFAULT_URL), content=body, headers=headers)


def same(told: object, got: object) -> bool:
    """Whether an answer is what the page says; "..." stands for anything."""
    if told == "...":
        return True
    if isinstance(told, dict) and isinstance(got, dict):
        return told.keys() == got.keys() and all(same(told[key], got[key]) for key in told)
    if isinstance(told, list) and isinstance(got, list):
        return len(told) == len(got) and all(map(same, told, got))
    return told == got


def without_time(text: str) -> str:
    """What `penstock check` prints, without the seconds it took and without blanks at the ends of lines."""
    lines = [line.rstrip() for line in text.splitlines()]
    return re.sub(r"(?<=, in )[0-9.]+ s$", "... s", "\n".join(lines) + "\n", flags=re.MULTILINE)


class Reader:
    """Does what a page says, block by block."""

    def __init__(self, folder: Path, stack: ExitStack, limit: float = PROGRAM_LIMIT) -> None:
        self.folder = folder
        self.stack = stack
        self.limit = limit
        self.server: Server | None = None
        self.reloads = False
        self.printed: str | None = None
        self.environ = {**os.environ, "PATH": f"{PENSTOCK.parent}:{os.environ['PATH']}"}
        """What `export` has changed in the shell."""
        self.consumer: MarkedProgram | None = None
        self.answer: httpx.Response | None = None

    def do(self, block: Block) -> None:
        printed, answer = self.printed, self.answer
        self.printed = None
        if block.verb:
            getattr(self, f"do_{block.verb}")(block)
        elif block.kind == "json" and printed is not None:
            assert same(json.loads(block.text), json.loads(printed)), printed
        elif block.kind == "text" and printed is not None:
            assert printed in (block.text, without_time(block.text))
        elif block.kind in FILES and printed is not None:
            assert printed == block.text
        elif block.kind == "json":
            assert answer is not None, f"nothing was asked to be answered with {block.text}"
            assert same(json.loads(block.text), answer.json()), answer.text
            self.answer = None
        if block.kind == "sh" and self.server is not None:
            for command in block.text.replace("\\\n", "").splitlines():
                if command.startswith("curl "):
                    self.answer = curl(command, self.server.http)

    def do_file(self, block: Block) -> None:
        reloads = self.reloads and block.argument.endswith(".py")
        starts = self.server.output.count("ready on") if reloads else 0
        (self.folder / block.argument).write_text(block.text)
        if reloads:
            self.server.until(lambda: self.server.output.count("ready on") > starts, "the new service", START_LIMIT)

    def do_run(self, block: Block) -> None:
        program = self.folder / "program_of_the_page.py"
        program.write_text(block.text)
        self.printed = self._python(program.name)

    def do_client(self, block: Block) -> None:
        assert self.server is not None
        assert DEFAULT_URL in block.text
        self.do_run(dataclasses.replace(block, text=block.text.replace(DEFAULT_URL, self.server.address)))

    def do_program(self, block: Block) -> None:
        assert block.text.strip() == f"python {block.argument}"
        self.printed = self._python(*block.argument.split())

    def do_check(self, block: Block) -> None:
        done = subprocess.run(
            [str(PENSTOCK), "check", block.argument],
            cwd=self.folder,
            env={**os.environ, "COLUMNS": "80"},
            capture_output=True,
            text=True,
            timeout=self.limit,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.printed = without_time(done.stdout)

    def do_serve(self, block: Block) -> None:
        self.stack.close()
        self.server = self.stack.enter_context(served(block.argument, self.folder))
        self.reloads = "--reload" in block.argument

    def do_shell(self, block: Block) -> None:
        for line in block.text.splitlines():
            name, separator, value = line.removeprefix("export ").partition("=")
            if separator and line.startswith("export "):
                self.environ[name] = value
            else:
                done = self._shell(line)
                assert done.returncode == 0, done.stdout + done.stderr
                self.printed = done.stdout

    def do_fails(self, block: Block) -> None:
        done = self._shell(block.text.strip())
        assert done.returncode == 1, done.stdout + done.stderr
        assert block.argument in done.stderr.rstrip().rpartition("\n")[2], done.stderr

    def do_work(self, block: Block) -> None:
        assert block.text.strip() == f"penstock consume {block.argument}"
        command = [str(PENSTOCK), "consume", *shlex.split(block.argument)]
        self.consumer = MarkedProgram(command, self.folder, self.environ)
        self.stack.callback(self.consumer.destroy)
        self.consumer.wait_for("working on", START_LIMIT)

    def do_kill(self, block: Block) -> None:
        assert self.consumer is not None
        until_now(self._succeeded, "a job that has succeeded", START_LIMIT, lambda: self.consumer.output)
        self.consumer.destroy()

    def _succeeded(self) -> int:
        return int(json.loads(self._shell("penstock jobs stats --json").stdout)["succeeded"])

    def _shell(self, line: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-o", "pipefail", "-c", line]
        return subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=self.limit, check=False
        )

    def do_metrics(self, block: Block) -> None:
        assert self.answer is not None
        address = str(self.answer.request.url)
        # Asked again: what a stage counts is told a second later.
        until_now(lambda: set(block.text.splitlines()) <= set(httpx.get(address).text.splitlines()), block.text)

    def _python(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=self.limit
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def read(page: Path, folder: Path, limit: float = PROGRAM_LIMIT) -> None:
    """Do what a page says; fails where something else comes of it."""
    for name, text in shared_files().items():
        (folder / name).write_text(text)
    for number, name in enumerate(of_page(page, "artifacts")):
        write_artifact(folder / name, slope=(0.5, number))
    model_dir, *published = of_page(page, "published") or [""]
    for name in published:
        publish_artifact(folder / name, folder / model_dir)
    with ExitStack() as stack:
        reader = Reader(folder, stack, limit)
        for block in blocks(page):
            reader.do(block)


def of_page(page: Path, name: str) -> list[str]:
    """What the comment `name` says of a page, in words; nothing where there is none."""
    found = re.search(rf"^<!-- {name}: (.+) -->$", page.read_text(), flags=re.MULTILINE)
    return found[1].split() if found else []


def needs_frameworks(page: Path) -> bool:
    return bool(of_page(page, "frameworks"))


TO_BE_DONE = [page for page in PAGES if any(b.kind == "json" or b.verb not in ("", "file") for b in blocks(page))]


# Each command has a limit of its own, and a tutorial has 25 of them: half a minute on a quiet machine.
@pytest.mark.timeout(240)
@each([page for page in TO_BE_DONE if not needs_frameworks(page)])
def test_a_reader_who_does_what_a_page_says_gets_what_it_says(page, tmp_path):
    read(page, tmp_path)


def test_every_python_block_is_python():
    def objections(page: Path) -> Iterator[str]:
        for block in blocks(page):
            if block.kind == "python":
                try:
                    compile(block.text, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                except SyntaxError as error:
                    yield f"{error.msg}, in line {error.lineno} of {block.text}"

    every_page_keeps(objections)


# -- links and names ------------------------------------------------------------------------------------------------


@functools.cache
def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@functools.cache
def anchors(page: Path) -> set[str]:
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE):
        base = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (slug := f"{base}-{number}" if number else base) in found:
            number += 1
        found.add(slug)
    return found


def test_every_relative_link_leads_somewhere():
    def objections(page: Path) -> Iterator[str]:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            if target.startswith("https://"):
                continue
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            if not there.exists():
                yield f"{target} is not there"
            elif anchor and anchor not in anchors(there):
                yield f"{target} has no such heading"

    every_page_keeps(objections)


def test_the_index_links_every_page():
    linked = set(re.findall(r"\]\(([^)#\s]+)\)", (DOCS / "README.md").read_text()))
    assert linked == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"README.md"}


def code(page: Path) -> Iterator[str]:
    """Everything a page shows as code, line by line."""
    for block in blocks(page):
        yield from block.text.splitlines()
    yield from re.findall(r"`([^`]+)`", prose(page))


@functools.cache
def the_parser() -> argparse.ArgumentParser:
    """Made once: pages have hundreds of lines of code, and each is looked up."""
    return _parser()


def known_flags(command: str) -> set[str]:
    """The flags of a command; of all commands where there is none of this name."""
    commands = commands_of(the_parser())
    asked = [commands[command]] if command in commands else commands.values()
    return {flag for each in asked for action in each._actions for flag in action.option_strings}


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands that a parser knows; argparse has no public way to ask."""
    return parser._subparsers._group_actions[0].choices


def flags_below(name: str) -> set[str]:
    """The flags of the commands of `penstock NAME`, which has commands of its own."""
    own = commands_of(commands_of(the_parser())[name])
    return {flag for command in own.values() for flag in command._option_string_actions}


def test_every_command_a_page_names_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    commands = commands_of(the_parser())

    def objections(page: Path) -> Iterator[str]:
        for line in code(page) if page != RENAMED else ():
            make = re.match(r"make ([a-z-]+)", line)
            if make is not None and make[1] not in targets:
                yield f"`{line}` is no target of the Makefile"
            command = re.match(r"penstock ([^\s:]+)", line)  # the title of what `check` prints has a colon behind it
            if command is not None and command[1] not in {*commands, "--version", "--help"}:
                yield f"`{line}` is no command"
            own = re.match(r"penstock (jobs|model|training|generate|worker) ([a-z0-9]+)", line)
            if own is not None and own[2] not in commands_of(commands[own[1]]):
                yield f"`{line}` is no command of `penstock {own[1]}`"
            if unknown := unknown_flags(line, command):
                yield f"`{line}` has no {unknown}"

    every_page_keeps(objections)


def unknown_flags(line: str, command: re.Match[str] | None) -> set[str]:
    """The flags in a line of code that no command of ours has, or not the one that the line calls."""
    if not line.startswith(
        (
            *(
                "penstock serve",
                "penstock consume",
                "penstock jobs",
                "penstock model",
                "penstock tr",
                "penstock generate",
            ),
            *("ExecStart=", "--"),
        )
    ):
        return set()
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", line))
    started = re.match(r"ExecStart=\S*penstock (\w+)", line) or command
    known = known_flags(started and started[1])
    for name in ("jobs", "model", "training", "generate", "worker"):
        called = line.startswith((f"penstock {name}", "--")) or (started and started[1]) == name
        known |= flags_below(name) if called else set()
    return told - known


def test_every_file_a_page_names_exists():
    def objections(page: Path) -> Iterator[str]:
        for name in re.findall(r"`([\w.]+/[\w./]*\.py)`", prose(page)):
            if not (ROOT / name).exists() and not (ROOT / "src" / "penstock" / name).exists():
                yield f"{name} is not there"

    every_page_keeps(objections)


def test_every_variable_and_metric_a_page_names_exists():
    owners = (ps.ServiceOptions, ps.ServerOptions, CommandOptions, WorkOptions, ArtifactOptions)
    variables = {environment_name(f.name) for owner in owners for f in dataclasses.fields(owner)}
    variables |= set(re.findall(r"PENSTOCK_[A-Z_]+", (ROOT / "setup.py").read_text()))
    variables |= {queue_url.VARIABLE, fault_points.VARIABLE}
    metrics = set(metric_rows())

    def objections(page: Path) -> Iterator[str]:
        for line in code(page) if page != RENAMED else ():
            if unknown := set(re.findall(r"PENSTOCK_[A-Z_]+", line)) - variables:
                yield f"`{line}` has the variables {unknown}"
            # Behind a dollar it is a variable of nginx.
            # Those of users have whatever name they give.
            if unknown := set(re.findall(r"(?<!\$)\bpenstock_(?!user_)[a-z_]+", line)) - metrics:
                yield f"`{line}` has the metrics {unknown}"

    every_page_keeps(objections)


# -- reference ------------------------------------------------------------------------------------------------------


def sections(page: Path, level: int) -> dict[str, str]:
    """The text under each heading of `level`, up to the next one of it or above; fails on a repeated heading."""
    found: dict[str, str] = {}
    heading = ""
    for line in page.read_text().splitlines():
        marks = re.match(r"(#+) (.+)", line)
        if marks and len(marks[1]) <= level:
            heading = marks[2] if len(marks[1]) == level else ""
            assert heading not in found, f"{page.name} has {heading!r} twice"
            if heading:
                found[heading] = ""
        elif heading:
            found[heading] += line + "\n"
    return found


def chapter(page: Path, heading: str) -> str:
    """The text from a heading of level 2 to the next one."""
    return page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def first_column(table: str) -> list[str]:
    """The words in code at the beginnings of the rows of a table, without its heading."""
    return re.findall(r"^\| `(\w+)` \|", table.partition("\n|---")[2], flags=re.MULTILINE)


def options() -> Iterator[tuple[str, str, object, bool]]:
    """Section, name, default, and whether it is also a flag and a variable."""
    for heading, owner in (
        ("Batch", ps.Batch),
        ("Service options", ps.ServiceOptions),
        ("Server options", ps.ServerOptions),
        ("Command options", CommandOptions),
        ("Artifact options", ArtifactOptions),
        ("Queue options", QueueOptions),
        ("Consumer options", WorkOptions),
    ):
        for f in dataclasses.fields(owner):
            if f.name not in owner.__annotations__:
                continue  # it stands with the options of the class that it comes from
            yield heading, f.name, f.default, owner is not ps.Batch
    for heading, function in (("Stage", ps.stage), ("Service", ps.Service)):
        for p in inspect.signature(function).parameters.values():
            if p.kind is p.KEYWORD_ONLY:
                yield heading, p.name, p.default, False


def test_the_reference_has_every_option_with_its_default():
    page = (DOCS / "reference" / "options.md").read_text()
    told = {}
    for chapter in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        heading, _, rest = chapter.partition("\n")
        for entry in re.split(r"^### ", rest, flags=re.MULTILINE)[1:]:
            name, _, text = entry.partition("\n")
            told[heading, name] = text
    assert set(told) == {(heading, name) for heading, name, *_ in options()}
    for heading, name, default, flag in options():
        shown = f"0o{default:o}" if name.endswith("_mode") else repr(default)
        assert f"default `{shown}`" in told[heading, name], (heading, name)
        first, _, meaning = told[heading, name].strip().partition("\n\n")
        assert "default" in first
        assert meaning.strip(), f"{heading} {name} is not described"
        if flag:
            assert f"`--{name.replace('_', '-')}`" in told[heading, name], name
            assert f"`{environment_name(name)}`" in told[heading, name], name


def header_rows(heading: str) -> set[str]:
    """The names of headers in the rows of a table of the page on HTTP, in small letters."""
    first_cells = re.findall(r"^\| (`[^|]+) \|", chapter(DOCS / "reference" / "http.md", heading), re.MULTILINE)
    return {name.lower() for cell in first_cells for name in re.findall(r"`([\w-]+)(?:: [^`]*)?`", cell)}


def test_a_page_of_another_origin_may_send_and_read_every_header_that_the_reference_has():
    set_by_browsers = {"expect", "origin"}
    leave = header_rows("Request headers") - set_by_browsers
    assert leave == set(cors.REQUEST_HEADERS)
    readable_anyway = {name for name in header_rows("Response headers") if name.startswith("access-control-")} | {
        "vary"
    }
    assert header_rows("Response headers") - readable_anyway == set(cors.RESPONSE_HEADERS)


def test_the_reference_has_every_argument_of_a_stage():
    (line,) = re.findall(r"^`ps\.stage\(([^)]+)\)`", (DOCS / "reference" / "python.md").read_text(), re.MULTILINE)
    assert re.split(r",\s+(?:\*, )?", line) == list(inspect.signature(ps.stage).parameters)


def test_the_reference_has_every_argument_of_an_external_stage():
    text = sections(DOCS / "reference" / "python.md", 3)["remote"]
    (call,) = re.findall(r"^`ps\.remote\(([^)]+)\)`", text, re.MULTILINE)
    assert re.split(r",\s+(?:\*, )?", call) == list(inspect.signature(ps.remote).parameters)
    first_cells = "".join(re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", first_cells)) == set(inspect.signature(ps.remote).parameters)


def test_the_reference_has_every_public_name():
    told = sections(DOCS / "reference" / "python.md", 3)
    methods = {f"Service.{name}" for name in vars(ps.Service) if not name.startswith("_")}
    assert set(told) == set(ps.__all__) | methods
    # An argument of a call that is left out of its section is an argument nobody finds.
    for name in methods:
        called = inspect.getattr_static(ps.Service, name.partition(".")[2])
        for argument in inspect.signature(called).parameters if inspect.isfunction(called) else ():
            assert argument in ("self", "xs", "fields") or argument in told[name], (name, argument)


def test_the_reference_has_every_name_of_the_queue_and_every_argument():
    page = DOCS / "reference" / "jobs.md"
    told = sections(page, 3)
    text = page.read_text()
    methods = {n: m for n, m in vars(JobQueue).items() if inspect.isfunction(m) and not n.startswith("_")}
    for_other_doors = {"poller", "result_poller", "run_poller", "get_many", "raw_result"}
    for_all = {"connect", "connect_async", "Job", "JobQueue", "AsyncJobQueue"}
    assert for_all <= set(re.findall(r"\bjobs\.(\w+)", text)) | {"Job"}
    classes = set(ps_jobs.__all__) - for_all
    assert set(told) == {f"JobQueue.{n}" for n in methods if n not in for_other_doors} | {
        "connect", "connect_async", "Job", "Errors",
    }  # fmt: skip
    for name in methods.keys() - for_other_doors:
        for argument in inspect.signature(methods[name]).parameters:
            assert argument == "self" or argument in told[f"JobQueue.{name}"], (name, argument)
    assert classes - {"JobError"} == set(re.findall(r"^\| `(\w+)` \|", told["Errors"], re.MULTILINE))
    named = set(re.findall(r"`(\w+)`", told["Job"]))
    assert {*Job.__struct_fields__, *Attempt.__struct_fields__, *AttemptError.__struct_fields__} <= named
    assert set(JobState) <= named
    assert set(Stats.__struct_fields__) - set(JobState) <= set(re.findall(r"`(\w+)`", told["JobQueue.stats"]))
    assert [scheme for scheme in urls.SCHEMES if f"`{scheme}://" not in text] == []


def test_the_reference_has_every_option_call_and_number_of_the_client():
    text = re.sub(r"\s+", " ", (DOCS / "reference" / "client.md").read_text())
    (options,) = re.findall(r"`Client\((url[^`]*)\)`", text)
    for client in (ps_client.Client, ps_client.AsyncClient):
        assert options.replace("*, ", "") == ", ".join(shown_parameters(client)).replace("'", '"')
        calls = {f"c.{name}": getattr(client, name) for name in ("predict", "predict_many", "health", "close")}
        for name, call in calls.items():
            shown = ", ".join(shown_parameters(call)).replace("'", '"')
            assert f"`{name}({shown})`" in text.replace("*, ", ""), name
    for jobs in (ps_client.ClientJobs, ps_client.AsyncClientJobs):
        for name, call in vars(jobs).items():
            if inspect.isfunction(call) and not name.startswith("_"):
                (shown,) = re.findall(rf"`c\.jobs\.{name}\(([^`]*)\)`", text)
                names = [part.partition("=")[0] for part in shown.replace("*, ", "").split(", ")]
                assert names == [p for p in inspect.signature(call).parameters if p != "self"], name
    assert set(inspect.signature(JobQueue.submit).parameters) == set(
        inspect.signature(ps_client.ClientJobs.submit).parameters
    )
    numbers = chapter(DOCS / "reference" / "client.md", "Stats")
    assert first_column(numbers) == [field.name for field in dataclasses.fields(ps_client.ClientStats)]
    arguments = chapter(DOCS / "reference" / "client.md", "Options")
    assert first_column(arguments) == [
        name for name in inspect.signature(ps_client.Client).parameters if not name.startswith("_")
    ]


def test_the_reference_has_every_option_call_error_and_number_of_the_typescript_client():
    sources = {path.stem: path.read_text() for path in (ROOT / "clients" / "typescript" / "src").glob("*.ts")}
    page = DOCS / "reference" / "client-typescript.md"
    named = set(re.findall(r"`([\w.]+)[`(]", page.read_text()))

    def members(file: str, interface: str) -> list[str]:
        (body,) = re.findall(rf"export interface {interface} .*?{{\n(.*?)\n}}", sources[file], re.DOTALL)
        return re.findall(r"^  readonly (\w+)", body, re.MULTILINE)

    assert first_column(chapter(page, "Options")) == members("options", "ClientOptions")
    options = {*members("options", "CallOptions"), *members("client", "ManyOptions")}
    assert options == set(re.findall(r"^\| `(\w+)` \|", chapter(page, "Calls"), re.MULTILINE))
    assert set(members("job-calls", "JobOptions")) <= named
    assert set(members("sending", "ClientStats")) <= named
    calls = re.findall(r"^  (?:async |get )(\w+)[(<]", sources["client"].partition("class ClientJobs")[0], re.MULTILINE)
    assert {f"c.{name}" for name in calls} <= named
    jobs = re.findall(r"^  async (\w+)[(<]", sources["client"].partition("class ClientJobs")[2], re.MULTILINE)
    assert {f"c.jobs.{name}" for name in jobs} <= named
    bases = dict(
        re.findall(r"^export class (\w+) extends (\w+)", sources["errors"] + sources["job-errors"], re.MULTILINE)
    )
    assert bases.keys() - {"JobNotSucceeded"} <= named
    assert bases.pop("PenstockError") == "Error"
    for name, base in bases.items():
        assert getattr(ps_errors, name).__bases__[0].__name__ == base


def shown_parameters(call: object) -> list[str]:
    """The parameters of a call as a page shows them."""
    parameters = [p for p in inspect.signature(call).parameters.values() if p.name[0] != "_" and p.name != "self"]
    return [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]


def test_the_client_is_one_for_threads_and_for_an_event_loop():
    for ours, theirs in (
        (ps_client.Client, ps_client.AsyncClient),
        (ps_client.ClientJobs, ps_client.AsyncClientJobs),
    ):
        public = {name for name in vars(ours) if not name.startswith("_")}
        assert public == {name for name in vars(theirs) if not name.startswith("_")}
        for name in public:
            if inspect.isfunction(vars(ours)[name]):
                assert shown_parameters(vars(ours)[name]) == shown_parameters(vars(theirs)[name]), name


def test_the_reference_has_every_argument_of_saving_and_loading_and_every_member_of_features():
    told = sections(DOCS / "reference" / "python.md", 3)
    for function in (ps.export.save, ps.export.load):
        name = f"`ps.export.{function.__name__}("
        call = re.sub(r"\s+", " ", told["export"].partition(name)[2].partition(")`")[0])
        for parameter in inspect.signature(function).parameters.values():
            assert parameter.kind is not parameter.KEYWORD_ONLY or parameter.name in call, parameter.name
            table = told["export"].partition(name)[2]
            assert re.search(rf"^\| [^|]*`{parameter.name}`[^|]* \|", table, re.MULTILINE), parameter.name
    members = {name for name in vars(ps.Features) if not name.startswith("_")}
    first_cells = "".join(re.findall(r"^\| ([^|]+) \|", told["Features"], re.MULTILINE))
    assert [name for name in members if not re.search(rf"\b{name}\b", first_cells)] == []


def test_the_reference_has_every_name_of_embeddings_and_every_option_of_them():
    text = (DOCS / "reference" / "embeddings.md").read_text()
    assert set(ps_embeddings.__all__) == set(re.findall(r"`emb\.(\w+)", text))
    store = (DOCS / "reference" / "training-store.md").read_text()
    calls = dict(re.findall(r"`(?:emb\.)?(\w+)\(([^`]*)\)`", text + store))
    plain = {"init", "constant", "zeros", "SGD", "Adagrad", "SparseAdam", "TableSpec", "open_training_store"}
    methods = {name for name in vars(TrainingStore) if not name.startswith("_")}
    for name in plain | methods:
        called = getattr(TrainingStore, name) if name in methods else getattr(ps_embeddings, name)
        shown = [part.partition("=")[0] for part in re.split(r", (?![^(]*\))", calls[name]) if part]
        assert shown == [each for each in inspect.signature(called).parameters if each != "self"], name


def test_the_reference_has_every_name_and_argument_of_the_ready_made_stages():
    told = sections(DOCS / "reference" / "stages.md", 2)
    for name in ps_stages.__all__:
        kind = getattr(ps_stages, name)
        takes = kind if name == "Outgoing" else kind.setup
        shown = re.search(rf"`{name}(?:\.setup)?\(([^`]*)\)`", told[name])[1]
        assert shown == arguments_of(takes), name


def arguments_of(function: Callable[..., object]) -> str:
    """The arguments with their defaults, as a page shows them."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    shown = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
    return ", ".join(shown).replace("'", '"')


def test_the_reference_has_every_kind_of_feature_and_every_option_with_its_default():
    told = sections(DOCS / "reference" / "features.md", 3)
    shared = set(re.findall(r"`(\w+)`", told["Options of kinds with ids"]))
    for kind in get_args(Feature):
        call = re.search(rf"`f\.{kind.__name__}\(([^`]*)\)`", told[kind.__name__])[1]
        shown = dict(part.partition("=")[::2] for part in call.split(", "))
        options = {option.name: option.default for option in dataclasses.fields(kind)}
        for name, default in options.items():
            if name in shown:
                assert (ast.literal_eval(shown[name]) if shown[name] else dataclasses.MISSING) == default, name
            else:
                assert "..." in shown, name
                assert name in shared, name
        assert shown.keys() - {"..."} <= options.keys()


def test_the_reference_has_every_command():
    text = (DOCS / "reference" / "commands.md").read_text()
    commands = commands_of(the_parser())
    first = text.partition("\n## ")[0]
    assert set(re.findall(r"^\| `penstock ([\w-]+) [^`]*` \|", first, re.MULTILINE)) == set(commands)
    for name in ("model", "embeddings", "training", "generate", "worker"):
        told = chapter(DOCS / "reference" / "commands.md", f"penstock {name}")
        assert set(re.findall(rf"^\| `penstock {name} (\w+) ", told, re.MULTILINE)) == set(commands_of(commands[name]))


def test_the_reference_cites_every_field_that_a_scaled_object_has_and_no_other():
    description = ScalingDescription("prices", "prices", "http://prometheus", 6.0, 60.0, least=1, most=10, fallback=2)
    found = set(leaves(yaml.safe_load(scaled_object(description))))
    told = sections(DOCS / "reference" / "commands.md", 3)["KEDA"]
    rows = re.findall(r"^\| (`[\w.`, ]+`) \|", told, re.MULTILINE)
    assert {field for row in rows for field in re.findall(r"`([\w.]+)`", row)} == found


def leaves(value: object, path: str = "") -> Iterator[str]:
    """The paths of what is not an object, through lists."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each, path)
    else:
        yield path


def test_the_reference_has_every_call_of_a_run_with_its_arguments():
    told = sections(DOCS / "reference" / "python.md", 4)
    calls = {name: call for name, call in vars(ps.training.Run).items() if inspect.isfunction(call) and name[0] != "_"}
    assert {name for name in told if name.startswith("Run")} == {"Run", *(f"Run.{name}" for name in calls)}
    for name, call in {"Run": ps.training.Run, **{f"Run.{name}": call for name, call in calls.items()}}.items():
        shown = re.search(rf"`(?:ps\.training|run)\.{name.removeprefix('Run.')}\(([^`]*)\)`", told[name])[1]
        parameters = [p for p in inspect.signature(call).parameters.values() if p.name[0] != "_" and p.name != "self"]
        defaults = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
        assert [part for part in shown.replace("*, ", "").split(", ") if part] == defaults


def test_the_reference_has_every_key_of_the_status_of_a_run():
    told = set(re.findall(r"`(\w+)`", chapter(DOCS / "reference" / "commands.md", "penstock training")))
    for kind in (RunStatus, PhaseStatus, WorkerStatus, TaskError):
        assert set(kind.__struct_fields__) <= told, kind
    assert set(RunState) <= told


def test_the_reference_has_every_file_and_every_field_of_an_artifact(tmp_path):
    told = set(code(DOCS / "reference" / "artifact.md"))
    write_artifact(tmp_path / "affairs")
    write_tables(tmp_path / "tables")
    names = [path.relative_to(folder) for folder in tmp_path.iterdir() for path in folder.rglob("*") if path.is_file()]
    folders = {f"tables/{table.name}/": "tables/NAME/" for table in (USER, ITEM)}
    shown = {str(name) if len(name.parts) < 3 else f"{name.parent}/" for name in names}
    assert {folders.get(name, name) for name in shown} <= told
    for kind in (Manifest, FileEntry, GraphEntry, BatchEntry, ReferenceEntry, TensorSpec, TableEntry, Lookup, Shard):
        assert set(kind.__struct_fields__) <= told, kind


def test_the_page_on_frameworks_names_the_versions_that_are_tested():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pins = dict(line.split("==") for line in extras["frameworks"] if "==" in line)
    text = (DOCS / "reference" / "frameworks.md").read_text()
    shown = {"keras": "Keras", "tensorflow-cpu": "TensorFlow"}
    for name in ("torch", "onnx", "onnxscript", "keras", "tensorflow-cpu", "scikit-learn", "skl2onnx"):
        assert f"{shown.get(name, name)} {'.'.join(pins[name].split('.')[:2])}" in text, name
    formats = {"onnx", "pt2", "saved_model"}
    rows = chapter(DOCS / "reference" / "frameworks.md", "Formats")
    assert set(re.findall(r'^\| `"(\w+)"` \|', rows, re.MULTILINE)) == formats
    assert formats == set(get_args(get_type_hints(GraphEntry)["format"]))
    for name in ("onnx", "torch", "tensorflow", "sklearn"):
        assert name in extras
        assert f"`penstock[{name}]`" in text


def test_the_reference_has_every_error_with_its_status():
    told = sections(DOCS / "reference" / "errors.md", 3)
    public = {name for name in ps.__all__ if isinstance(getattr(ps, name), type)}
    errors = {name for name in public if issubclass(getattr(ps, name), Exception)}
    assert set(told) == errors | {name for name in ps_embeddings.__all__ if hasattr(ps_errors, name)}
    problems = Problems(ps.ServerOptions(), FaultLog(VirtualClock()))
    for kind, (urn, _) in KINDS.items():
        text = told[kind.__name__]
        assert f"`urn:penstock:problem:{urn}`" in text, kind
        assert re.search(rf"\b{problems.status(kind())}\b", text), kind
        if kind is not ps.RequestError:
            assert ("not retryable" in text) is not kind.retryable, kind
            assert "retryable" in text, kind
    assert "504" in told["DeadlineExceeded"]


def test_the_reference_has_every_status_http_refuses_with():
    told = set(re.findall(r"^\| (\d{3}) \|", (DOCS / "reference" / "http.md").read_text(), flags=re.MULTILINE))
    pattern = r"(?:[Rr]efused?\(\s*|\(|return |or \()([45]\d\d), f?\""
    sources = (ROOT / "src" / "penstock" / "server").rglob("*.py")
    used = {status for source in sources for status in re.findall(pattern, source.read_text())}
    assert len(used) > 10, "the way refusals are written has changed"
    assert used - {"500"} <= told  # a fault of our own, for which there is no rule


def test_the_reference_tells_each_kind_of_503_from_the_others():
    rows = re.findall(r"^\| 503 \| `([^`]+)`", chapter(DOCS / "reference" / "http.md", "Statuses"), re.MULTILINE)
    problems = Problems(ps.ServerOptions(), FaultLog(VirtualClock()))
    kinds = [f"urn:penstock:problem:{urn}" for kind, (urn, _) in KINDS.items() if problems.status(kind()) == 503]
    assert sorted(rows) == sorted([*kinds, "about:blank"])


def test_the_reference_has_every_path_and_every_media_type():
    text = (DOCS / "reference" / "http.md").read_text()
    told = set(
        re.findall(r"^\| `(?:GET|POST) (/\S+)` \|", chapter(DOCS / "reference" / "http.md", "Routes"), re.MULTILINE)
    )
    app = App([ps.Service(ps.stage(round))], ps.ServerOptions(), VirtualClock())
    paths = {path.decode() for path in app._routes}
    assert told == {path for path in paths if not path.startswith("/docs/")}  # what the page at /docs loads
    for name in media_types._NAMES:
        assert f"`{name.decode()}`" in text, name


def test_the_reference_has_every_call_of_a_queue_with_its_parameters_and_problems():
    told = chapter(DOCS / "reference" / "http.md", "Jobs")
    queries = {
        "POST /jobs": jobs_document.SUBMITTING,
        "GET /jobs": jobs_document.LISTING,
        "GET /jobs/{id}/result": jobs_document.WAITING,
    }
    calls = {f"{method} {path}" for method, path in jobs_document.operations(1)}
    assert set(re.findall(r"^\| `((?:GET|POST|DELETE) [^`]+)` \|", told, re.MULTILINE)) == calls
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| `(\w+ /[^`]+)` \|", told, re.MULTILINE)
    for call, parameters in queries.items():
        assert {name for names, of in rows if of == call for name in re.findall(r"`(\w+)`", names)} == set(parameters)
    assert f"{jobs_document.LONGEST_WAIT_SECONDS:g} at most" in told
    assert f"{jobs_document.MOST_LISTED} at most" in told
    rows = re.findall(r"^\| ([0-9, ]+) \| `urn:penstock:problem:([a-z-]+)` \|", told, re.MULTILINE)
    assert {(urn, str(status)) for urn, _, status in JOB_KINDS.values()} <= {
        (urn, status) for statuses, urn in rows for status in statuses.split(", ")
    }


def metric_rows(chapters: str = "all") -> dict[str, str]:
    """The metrics that the page tells of; those of `jobs`, which a consumer has besides, or of the `others`."""
    page = (DOCS / "reference" / "metrics.md").read_text()
    before, heading, rest = page.partition("\n## Jobs\n")
    assert heading
    jobs, _, after = rest.partition("\n## ")
    page = {"all": page, "jobs": jobs, "others": before + after}[chapters]
    return dict(re.findall(r"^\| `(penstock_[a-z_]+)` \| (.+)$", page, flags=re.MULTILINE))


def test_the_reference_has_every_metric_and_no_other(tmp_path):
    told = metric_rows("others")
    (tmp_path / "prices.py").write_text(shared_files()["prices.py"])
    with served("prices:service --min-free-memory 1", tmp_path) as server:
        server.http.post("/predict", json={"rooms": 1, "area": 1.0})
        page = server.http.get("/metrics").text
    assert as_told(page, told) == set(told)


async def test_the_reference_has_every_metric_of_a_consumer(tmp_path):
    bench = Bench(tmp_path, [fake_service()])
    bench.consumer.counters.stats = Stats()
    bench.consumer.counters.run_ended("succeeded")
    bench.consumer.counters.attempt_failed("worker_lost")
    registry = CollectorRegistry()
    registry.register(JobCollector(bench.consumer))
    told = metric_rows("jobs")
    assert as_told(generate_latest(registry).decode(), told) == set(told)


def as_told(page: str, told: dict[str, str]) -> set[str]:
    """The names of the metrics on `page`; fails where kind or labels are not those of the row in `told`."""
    text = (DOCS / "reference" / "metrics.md").read_text()
    found = set()
    for family in text_string_to_metric_families(page):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if name.startswith("process_"):
            assert f"`{name}`" in text
            continue
        found.add(name)
        kind, labels = (cell.strip() for cell in told[name].split("|")[:2])
        assert kind == family.type, name
        given = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert given == set(re.findall(r"`(\w+)`", labels)) or not family.samples, name
    return found


def test_the_words_for_states_reasons_and_endings_are_those_of_the_code():
    metrics = (DOCS / "reference" / "metrics.md").read_text()
    reasons = metrics.partition("## Reasons for a cut")[2].partition("\n## ")[0]
    assert set(first_column(reasons)) == set(Reason)
    states = sections(DOCS / "reference" / "python.md", 3)["State"]
    assert set(first_column(states)) == set(State)
    assert first_column(chapter(DOCS / "reference" / "metrics.md", "Endings")) == list(ENDINGS)
    assert first_column(chapter(DOCS / "reference" / "metrics.md", "Shared memory")) == list(INLINE_REASONS)


def test_the_reference_and_the_page_for_operators_have_every_reason_of_a_refusal():
    errors = (DOCS / "reference" / "errors.md").read_text()
    refusals = errors.partition("#### Reasons of a refusal")[2].partition("\n#")[0]
    assert first_column(refusals) == list(REFUSAL_REASONS)
    meant = chapter(DOCS / "how-to" / "overload.md", "What each refusal means")
    assert first_column(meant) == [*REFUSAL_REASONS, NOT_READY]


def test_the_flags_for_the_statuses_of_other_servers_give_these():
    rows = re.findall(
        r"^\| [^|]+ \| (\d+) \| (\d+) \| (\d+) \| (.+) \|$",
        chapter(DOCS / "how-to" / "migrate.md", "Statuses"),
        flags=re.MULTILINE,
    )
    assert len(rows) == 4
    for *told, flags in rows:
        given = dict(re.findall(r"--([\w-]+)-status (\d+)", flags))
        problems = Problems(
            ps.ServerOptions(**{f"{name.replace('-', '_')}_status": int(status) for name, status in given.items()}),
            FaultLog(VirtualClock()),
        )
        errors = (ps.Overloaded(), ps.DeadlineExceeded(), ps.DeadlineExceeded(ran=True))
        assert [problems.status(error) for error in errors] == [int(status) for status in told], flags


# -- pictures -------------------------------------------------------------------------------------------------------


def test_every_picture_is_what_the_sources_say():
    texts = {relative(page): page.read_text() for page in PAGES}
    stale = [page for page, text in texts.items() if pictures.drawn(text) != text]
    assert not stale, "`make pictures` draws anew what is stale"


def test_every_picture_stands_in_a_page():
    told = [name for page in PAGES for name in re.findall(r"^<!-- picture: (.+) -->$", page.read_text(), re.MULTILINE)]
    assert sorted(told) == sorted(pictures.PICTURES)


def test_a_stale_picture_is_caught_and_drawn_anew(tmp_path, capsys):
    good = (DOCS / "explanation" / "design.md").read_text()
    page = tmp_path / "design.md"
    for arrow in ("    server --> hosting\n", "    new --> queued: offer\n"):
        assert arrow in good
        page.write_text(good.replace(arrow, ""))
        assert pictures.main(["--check", str(page)]) == 1
        assert "design.md: stale" in capsys.readouterr().out
        assert pictures.main(["--write", str(page)]) == 0
        assert page.read_text() == good
        assert pictures.main(["--check", str(page)]) == 0


def test_every_cause_of_an_attempts_end_is_in_the_picture_of_a_job():
    ends, rests, at_once = pictures.causes_of_ends()
    assert set(ends) | set(rests) | set(at_once) == set(FailureCause)
    assert (ends, at_once) == (
        [cause for cause in FailureCause if cause is not FailureCause.RELEASED],
        [FailureCause.RELEASED],
    )


def test_every_move_of_a_worker_is_drawn():
    names = {name for name, *_ in pictures.slot_moves()}
    assert names == {"start", "fill", "become ready", "replace", "leave", "close", "stop", "abandon", "end"}


# -- operating ------------------------------------------------------------------------------------------------------

OPERATE = DOCS / "how-to" / "operate.md"
PLACE = "…"
"""What stands in a line of the log for a value."""


def written_form(text: str) -> str:
    """The first line of a text that the code writes, with a `PLACE` for each value of %-formatting."""
    return re.sub(r"%(?:\.\d+)?[a-z]", PLACE, text.strip("\n").partition("\n")[0])


def forms_of(source: str) -> set[str]:
    """Each text in `source`, with a `PLACE` for each value."""
    found: set[str] = set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else PLACE for part in node.values]
            found.add(written_form("".join(map(str, parts))))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(written_form(node.value))
    return found


class WrittenForms:
    """Says whether a line is one of some forms, or one whose values are again of these forms.

    A form that is only punctuation could put any two words together; but `ID: MESSAGE` is how failures are written.
    """

    def __init__(self, forms: set[str]) -> None:
        self._forms = forms
        self._judged: dict[str, bool] = {}
        joining = [
            form for form in forms if PLACE in form and (re.search("[a-z]", form) or form == f"{PLACE}: {PLACE}")
        ]
        # The longest part is looked for first: nearly every form ends there.
        self._joining = [(form, sorted(form.split(PLACE), key=len, reverse=True)) for form in joining]

    @staticmethod
    @functools.cache
    def _patterns(form: str) -> list[re.Pattern[str]]:
        """Two, since a value may have in it the words that come after it in the form."""
        return [re.compile(re.escape(form).replace(re.escape(PLACE), value)) for value in ("(.+?)", "(.+)")]

    def has(self, line: str) -> bool:
        if line not in self._judged:
            self._judged[line] = line == PLACE or line in self._forms or self._is_joined(line)
        return self._judged[line]

    def _is_joined(self, line: str) -> bool:
        for form, (longest, *others) in self._joining:
            if longest in line and all(part in line for part in others):
                for pattern in self._patterns(form):
                    found = pattern.fullmatch(line)
                    if found is not None and all(v != line and self.has(v) for v in found.groups()):
                        return True
        return False


def test_every_line_of_the_log_that_a_page_quotes_is_one_that_the_code_writes():
    forms = WrittenForms(set().union(*map(forms_of, read_tree().values())))
    logs = [block.text for page in PAGES for block in blocks(page) if block.kind == "log"]
    quoted = "".join(logs).splitlines()
    assert len(quoted) > 20
    for line in quoted:
        assert forms.has(line), line
        # A word more, or another word, is not found: the check can fail.
        assert not forms.has(line + " at night") or line.endswith(PLACE), line
        assert not forms.has(re.sub(r"[a-z]{3,}", "xyz", line, count=1)), line


def test_what_the_page_for_operators_names_exists():
    text = prose(OPERATE)
    metrics = (DOCS / "reference" / "metrics.md").read_text()
    named = set(re.findall(r"`((?:penstock|process)_[a-z_]+)`", text))
    assert len(named) > 20
    assert [name for name in named if f"`{name}`" not in metrics] == []
    links = re.findall(r"\[`(\w+)`\]\(\.\./reference/options\.md#([\w-]+)\)", text)
    assert len(links) == text.count("reference/options.md#")
    names = {name for _, name, *_ in options()}
    assert [link for link in links if link[0] not in names or re.sub(r"-\d+$", "", link[1]) != link[0]] == []


# -- the whole ------------------------------------------------------------------------------------------------------


def test_the_changelog_tells_of_this_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{re.escape(ps.__version__)}\] - (Unreleased|\d{{4}}-\d\d-\d\d)$", text, re.MULTILINE)
    headings = set(re.findall(r"^### (.+)$", text, flags=re.MULTILINE))
    assert headings <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_examples_are_all_named_by_a_folder_with_a_readme():
    for folder in (ROOT / "examples").iterdir():
        if folder.is_dir() and not folder.name.startswith(("_", ".")):
            assert (folder / "README.md").is_file(), os.fspath(folder)
