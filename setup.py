"""Compile the path of a request, where there is a C compiler, and take in the files of Swagger UI.

The modules below are ordinary Python, and run as they are in an editable install: that is how they are developed,
tested and stepped through.  In any other install mypyc makes C extensions of them, which halves what a request costs
in the coordinator (`docs/explanation/performance.md`).  ``PENSTOCK_COMPILE=0`` leaves them as they are, ``1`` insists;
without either they stay Python where they cannot be compiled.  ``PENSTOCK_OPT=0`` is for tests: it builds in half the
time what is slower.

Each module becomes a C file.  As many are compiled at a time as there are cores, and only those that have changed since
the last build in this folder.  All are linked into one library, where a call from one module to another stays direct.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

COMPILED = [
    "codec/decode.py",
    "codec/encode.py",
    "codec/well_formed.py",
    "core/abandonment.py",
    "core/admission.py",
    "core/alarm.py",
    "core/arriving.py",
    "core/back_lane.py",
    "core/batching.py",
    "core/company.py",
    "core/counters.py",
    "core/cuts.py",
    "core/deadlines.py",
    "core/dispatch.py",
    "core/displacement.py",
    "core/idleness.py",
    "core/idle_checks.py",
    "core/item.py",
    "core/lanes.py",
    "core/ledger.py",
    "core/moves.py",
    "core/outcome.py",
    "core/page_ages.py",
    "core/pace.py",
    "core/payload.py",
    "core/predicted_end.py",
    "core/quotas.py",
    "core/request_ids.py",
    "core/retry_slots.py",
    "core/run_times.py",
    "core/serving_order.py",
    "core/slab_allocator.py",
    "core/stage_progress.py",
    "core/supervision.py",
    "core/tenants.py",
    "core/token_bucket.py",
    "core/waiting.py",
    "core/worker_batches.py",
    "runtime/engine.py",
    "runtime/external_stage.py",
    "runtime/feeding.py",
    "runtime/flow.py",
    "runtime/idle_rounds.py",
    "runtime/newcomers.py",
    "runtime/prediction.py",
    "runtime/retry_times.py",
    "runtime/room_behind.py",
    "runtime/settling.py",
    "runtime/shared_memory.py",
    "runtime/slabs.py",
    "runtime/slot_states.py",
    "runtime/stage_driver.py",
    "runtime/stage_failures.py",
    "runtime/stage_memory.py",
    "runtime/stall_watch.py",
    "runtime/worker_failures.py",
    "runtime/waiting_slot.py",
    "runtime/worker_slot.py",
    "server/app.py",
    "server/application.py",
    "server/chaos_door.py",
    "server/fields.py",
    "server/http1/answers.py",
    "server/http1/bodies.py",
    "server/http1/connection.py",
    "server/http1/connections.py",
    "server/http1/heads.py",
    "server/http1/intake.py",
    "server/http1/large_bodies.py",
    "server/http1/reading.py",
    "server/http1/refusals.py",
    "server/http1/states.py",
    "server/http1/time_limits.py",
    "server/http1/unread.py",
    "server/path_pattern.py",
    "server/request_terms.py",
    "server/protocols/batch.py",
    "server/protocols/health_route.py",
    "server/protocols/later.py",
    "server/protocols/predict.py",
    "server/protocols/route.py",
    "server/protocols/route_table.py",
    "transport/framing.py",
    "transport/slab_pieces.py",
    "transport/worker_socket.py",
    "worker/bisect.py",
    "worker/current_call.py",
    "worker/runner.py",
]

BUILDING = {"bdist_wheel", "build", "build_ext", "install"}
"""Commands that make something to install; an editable install and a look at the metadata are none."""


WISH = os.environ.get("PENSTOCK_COMPILE", "")

OPT = os.environ.get("PENSTOCK_OPT", "3")
"""How hard the C compiler tries: what follows its -O."""

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

WHY_NOT: list[str] = []
"""Why the modules could not be compiled, in a line; empty where they were, or were not to be."""


def in_a_line(error: Exception) -> str:
    """What `error` says; of a command with all its flags, how it begins and how it ended."""
    words = " ".join(str(error).split())
    return words if len(words) <= 200 else f"{words[:60]} ... {words[-60:]}"


class Build(build):
    """Everything of a wheel, and in it the word why it is plain Python where it need not be."""

    def run(self) -> None:
        """Build, and leave the word: `penstock serve` says it at its start (`penstock/hosting/build.py`)."""
        # An earlier build into this folder may have left modules that are gone, or that are not compiled any more.
        shutil.rmtree(Path(self.build_lib, "penstock"), ignore_errors=True)
        for library in Path(self.build_lib).glob("*__mypyc.*"):
            library.unlink()
        super().run()
        word = Path(self.build_lib, "penstock", "not_compiled.txt")
        if WHY_NOT:
            word.write_text(WHY_NOT[0])


SWAGGER_UI = ["swagger-ui.css", "swagger-ui-bundle.js", "favicon-32x32.png", "LICENSE"]
"""What the page at /docs is made of, and the licence of that."""


class BuildModules(build_py):
    """Put the files of Swagger UI beside the module that serves them.

    They are those of a build requirement, `flask-swagger-ui`.  It is located and not imported: it imports Flask.  They
    go into what is built, and never into the repository: for an editable install, which has its modules in the source
    tree, git ignores their folder.
    """

    def run(self) -> None:
        """Build; without the requirement a build goes on, and the page says what is missing."""
        super().run()
        found = find_spec("flask_swagger_ui")
        if found is None or not found.submodule_search_locations:
            self.warn("penstock gets no page at /docs: a build without isolation needs flask-swagger-ui installed")
            return
        folder = Path("src" if self.editable_mode else self.build_lib, "penstock/server/pages/assets")
        folder.mkdir(parents=True, exist_ok=True)
        for name in SWAGGER_UI:
            part = folder / f"{name}.part"
            shutil.copyfile(Path(found.submodule_search_locations[0], "dist", name), part)
            part.replace(folder / name)  # a server, or a test, that reads it meanwhile has the whole file


class BuildExtensions(build_ext):
    """All of them or none: a module compiled without the others would not work."""

    def finalize_options(self) -> None:
        """Keep what is compiled without optimisation apart: each build finds its own parts of before."""
        super().finalize_options()
        self.build_temp = f"{self.build_temp}-O{OPT}"
        self.parallel = CORES
        self.force = True  # link anew: a library of the other kind may lie there, newer than its sources

    def run(self) -> None:
        """Build; where that fails and nobody insisted, leave nothing of it behind."""
        try:
            super().run()
        except Exception as error:
            if WISH == "1":
                raise
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.extensions = self.distribution.ext_modules = []
            WHY_NOT.append(in_a_line(error))
            self.warn(f"penstock stays plain Python, at about twice the cost of a request: {error}")

    def build_extensions(self) -> None:
        """Compile the sources of all extensions side by side, then link them; setuptools does one after the other."""
        parts = Parts(self.compiler, self.build_temp)
        parts.compile(self.extensions)
        self.compiler.compile = parts.objects
        super().build_extensions()


class Parts:
    """The object files of some extensions.

    Beside each lies its key: a digest of what it was made of, and one of itself.  An object whose key is still right is
    not made again.
    """

    def __init__(self, compiler: Any, folder: str) -> None:
        self._compiler = compiler
        self._kind = version_of(compiler.compiler_so[0])
        self._compile = compiler.compile
        self._folder = folder

    def objects(self, sources: list[str], **_: object) -> list[str]:
        """Where the objects of `sources` are: in place of the compiler's `compile`, when they have been made."""
        found: list[str] = self._compiler.object_filenames(sources, output_dir=self._folder)
        return found

    def compile(self, extensions: Iterable[Any]) -> None:
        """Make each object that is missing or stale."""
        parts = [(source, extension) for extension in extensions for source in extension.sources]
        stale = [part for part in parts if self._key_before(part[0]) != self._key(*part) + self._of_object(part[0])]
        stale.sort(key=lambda part: -Path(part[0]).stat().st_size)  # the last to be made is small: no core waits long
        with ThreadPoolExecutor(CORES) as pool:
            running = [pool.submit(self._make, *part) for part in stale]
            try:
                for made, ended in enumerate(as_completed(running), 1):
                    ended.result()
                    tell(made, len(running))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _make(self, source: str, extension: Any) -> None:
        key = self._key(source, extension)  # of what the compiler reads: afterwards it may be another
        self._compile(
            [source],
            output_dir=self._folder,
            include_dirs=extension.include_dirs,
            extra_postargs=extension.extra_compile_args,
        )
        self._key_file(source).write_text(key + self._of_object(source))

    def _key(self, source: str, extension: Any) -> str:
        """A digest of a source, the headers that were made for its extension, the compiler and its flags."""
        digest = hashlib.sha256(Path(source).read_bytes())
        for header in extension.depends:
            if Path(header).name.startswith("__native"):  # the others are of mypy's runtime: its version tells them
                digest.update(Path(header).read_bytes())
        flags = [self._kind, *self._compiler.compiler_so, *extension.extra_compile_args, version("mypy"), sys.version]
        digest.update("\0".join(flags).encode())
        return digest.hexdigest()

    def _key_file(self, source: str) -> Path:
        return Path(f"{self.objects([source])[0]}.key")

    def _key_before(self, source: str) -> str:
        with contextlib.suppress(OSError):
            return self._key_file(source).read_text(errors="replace")
        return ""

    def _of_object(self, source: str) -> str:
        """A digest of the object, if there is one: a full disk or a power cut leaves parts of some."""
        with contextlib.suppress(OSError):
            return hashlib.sha256(Path(self.objects([source])[0]).read_bytes()).hexdigest()
        return ""


def version_of(compiler: str) -> str:
    """What a compiler says of its version, "" if nothing."""
    with contextlib.suppress(OSError):
        command = [compiler, "--version"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603  (our own)
    return ""


def lock_folder() -> None:
    """Have this folder for the builds of this process, once that of another has ended: they write the same files."""
    with contextlib.suppress(OSError):  # where nothing can be written, what follows says so
        Path("build").mkdir(exist_ok=True)
        lock = os.open("build/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(lock, fcntl.LOCK_EX)  # until this process ends


def tell(made: int, total: int) -> None:
    """Say how far the compilation is: on the terminal, as pip shows nothing of a build, and each tenth in the log."""
    line = f"penstock: {made} of {total} parts compiled"
    if made == total or made * 10 // total > (made - 1) * 10 // total:
        print(line, flush=True)
    with contextlib.suppress(OSError), Path("/dev/tty").open("w") as terminal:
        terminal.write(f"\r\033[K  {line} ... ")


def extensions() -> list[Any]:
    """The compiled modules, or none where they are not wanted or cannot be had."""
    if WISH == "0" or not BUILDING.intersection(sys.argv):
        return []
    try:
        from mypyc.build import mypycify

        print(f"penstock: reading the types of {len(COMPILED)} modules", flush=True)
        made: list[Any] = mypycify(
            [f"src/penstock/{name}" for name in COMPILED], opt_level=OPT, debug_level="1", multi_file=True
        )
    except (Exception, SystemExit) as error:  # mypy ends so where it finds errors, in our types or those of a library
        if WISH == "1":
            raise
        by_mypy = "mypy found errors in the types of Penstock, or of a library that it uses"
        WHY_NOT.append(in_a_line(error) if isinstance(error, Exception) else by_mypy)
        return []
    return made


if BUILDING.intersection(sys.argv):
    lock_folder()
setup(ext_modules=extensions(), cmdclass={"build": Build, "build_ext": BuildExtensions, "build_py": BuildModules})
