"""Change the code at random, one place at a time, and count the changes that no unit test notices.

    python tests/mutation/sample.py                            # 300 changes of core, runtime and HTTP/1
    python tests/mutation/sample.py --count 30 --seed 7        # a first look
    python tests/mutation/sample.py 'core/admission.py'        # one file, or whatever a pattern names

Everything happens in a copy.  The tests in tests/unit run once under coverage, to learn which test executes which
line; after a change, those run that execute a line of the changed statement, or all where the statement is in no
function.  A change is noticed when a test fails, cannot be collected, or does not end.  A change of a line that no test
executes is not, and nothing is run.  What a test executes in other processes is not seen.  Each place is drawn at most
once, and each is as likely as any other.  The unchanged copy must pass first, in the usual order, and last, the fastest
test first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from changes import Place, changed, is_program, places
from copies import PACKAGE, Copy, Learned, TreeFailed
from results import Result, Sample, table

TARGETS = ("core/**/*.py", "runtime/**/*.py", "server/http1/**/*.py")


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to try."""

    file: Path
    place: Place
    replacement: bytes


def find(package: Path, patterns: list[str]) -> list[tuple[Path, Place]]:
    """All places in the files of `package` that the patterns name, each once."""
    files = sorted({path.relative_to(package) for pattern in patterns for path in package.glob(pattern)})
    return [(file, place) for file in files for place in places((package / file).read_bytes())]


def draw(package: Path, found: list[tuple[Path, Place]], *, count: int, seed: int) -> list[Change]:
    """At most `count` changes, of which each makes a program, at places drawn with `seed`."""
    rng = random.Random(seed)
    drawn: list[Change] = []
    for file, place in rng.sample(found, len(found)):
        if len(drawn) == count:
            break
        replacement = rng.choice(place.replacements)
        if is_program(changed((package / file).read_bytes(), place, replacement)):
            drawn.append(Change(file, place, replacement))
    return drawn


def can_notice(change: Change, learned: Learned) -> set[str] | None:
    """The tests that can notice a change; None for all."""
    reach = change.place.reach
    lines = learned.executed.get(change.file, {})
    tests = set().union(*(lines.get(line, set()) for line in range(reach.first, reach.last + 1)))
    return None if "" in tests or (tests and reach.at_import) else tests


async def attempt(copy: Copy, change: Change, learned: Learned) -> Result:
    """Make a change in `copy`, run what can notice it, and take it back."""
    source = (copy.package / change.file).read_bytes()
    new = changed(source, change.place, change.replacement)
    tests = can_notice(change, learned)
    noticed_by, ran, seconds = None, 0, 0.0
    if tests is None or tests:
        with copy.changed(change.file, new):
            run = await copy.run(tests, learned)
        noticed_by, ran, seconds = run.noticed_by, len(run.notes), run.seconds
    line = change.place.line
    before, after = (text.split(b"\n")[line - 1].decode().strip() for text in (source, new))
    return Result(change.file.as_posix(), line, change.place.kind, before, after, noticed_by, ran, seconds)


async def attempt_all(
    copies: list[Copy], changes: list[Change], learned: Learned, tell: Callable[[Result], None]
) -> None:
    """Try the changes in their order, as many at a time as there are copies."""
    left = iter(changes)

    async def work(copy: Copy) -> None:
        for change in left:
            tell(await attempt(copy, change, learned))

    async with asyncio.TaskGroup() as group:
        for copy in copies:
            group.create_task(work(copy))


@contextlib.contextmanager
def progress(console: Console, total: int) -> Iterator[Callable[[Result], None]]:
    """What tells of a result: a bar on a terminal, else a line each; in both, a line for one that was not noticed."""
    done = 0
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )

    def tell(result: Result) -> None:
        nonlocal done
        done += 1
        bar.advance(task)
        if result.noticed_by is None or not console.is_terminal:
            verdict = "unnoticed" if result.noticed_by is None else "noticed"
            figures = f"{result.tests} tests, {result.seconds:.1f} s"
            say(console, f"{done}/{total} {verdict}: {result}  ({figures})")

    with bar if console.is_terminal else contextlib.nullcontext():
        task = bar.add_task("changes", total=total)
        yield tell


def say(console: Console, text: str) -> None:
    """One line as it is: source code looks like markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


async def take(chosen: argparse.Namespace, console: Console) -> None:
    """Take the sample and print it; TreeFailed if the unchanged tree does not pass first and last."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with tempfile.TemporaryDirectory(prefix="penstock-mutation-") as name:
        folder = Path(name)
        copy = Copy.of(chosen.tree, folder / "0")
        patterns = [*chosen.targets, *chosen.also]
        found = find(copy.package, patterns)
        changes = draw(copy.package, found, count=chosen.count, seed=chosen.seed)
        sample = Sample(commit(chosen.tree), chosen.seed, chosen.count, patterns, len(found))
        say(console, f"seed {chosen.seed}: {len(changes)} of {len(found)} places; first the unchanged tree")
        learned = await copy.learn()
        copies = [copy, *(copy.clone(folder / str(number)) for number in range(1, chosen.jobs))]

        def keep(result: Result) -> None:
            sample.results.append(result)
            save(sample, chosen.json)
            tell(result)

        with progress(console, len(changes)) as tell:
            await attempt_all(copies, changes, learned, keep)
        await copy.verify(learned)
        sample.finished = True
        save(sample, chosen.json)
    for result in sample.unnoticed():
        say(console, f"unnoticed: {result}")
    console.print(table(sample))


def save(sample: Sample, path: Path | None) -> None:
    """Write what is known so far: a long run that is ended has not been for nothing."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(sample)) + b"\n")


def commit(tree: Path) -> str:
    """What git calls the state of `tree`; nothing where there is no git."""
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Change the code at random and count what no unit test notices.")
    parser.add_argument("targets", nargs="*", default=TARGETS, help=f"files of src/penstock (default: {TARGETS})")
    parser.add_argument("--also", nargs="+", action="extend", default=[], metavar="FILES", help="further files")
    parser.add_argument("--count", type=int, default=300, help="changes to try (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="draws the changes (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, help="changes tried at a time (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too, one after the other")
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[2], help="another checkout")
    chosen = parser.parse_args()
    if chosen.count < 1 or chosen.jobs < 1:
        parser.error("--count and --jobs must be at least 1")
    package = chosen.tree / PACKAGE
    if chosen.targets is TARGETS:  # a tree need not have all of these
        chosen.targets = [pattern for pattern in TARGETS if any(package.glob(pattern))]
    for pattern in (*chosen.targets, *chosen.also):
        if not any(package.glob(pattern)):
            parser.error(f"no file {pattern} in {package}")
    if not (chosen.targets or chosen.also):
        parser.error(f"no file to change in {package}")
    return chosen


def main() -> int:
    console = Console()
    try:
        asyncio.run(take(arguments(), console))
    except TreeFailed as error:
        say(console, str(error))
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
