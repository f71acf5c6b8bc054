"""A service as people write it: in a script, in a package, unguarded, on a command line; each a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

LIMIT = 30


def run(*arguments: str, folder: Path, stdin: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        input=stdin,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return str(path)


MAIN = """
    import asyncio
    from dataclasses import dataclass

    import msgspec

    import penstock as ps


    class Question(msgspec.Struct):
        text: str


    @dataclass
    class Answer:
        text: str
        length: int


    class Respond(ps.Stage):
        batch = ps.Batch(max_size=4)

        def predict(self, xs: list[Question]) -> list[Answer]:
            assert all(type(x) is Question for x in xs)
            return [Answer(x.text.upper(), len(x.text)) for x in xs]


    class Check(ps.Stage):
        def predict(self, x: Answer) -> Answer:
            assert type(x) is Answer, type(x)
            return x


    async def main() -> None:
        async with ps.Service(ps.stage(Respond, workers=2), Check) as service:
            answers = await service.predict_many([Question("what"), Question("why")])
            assert answers == [Answer("WHAT", 4), Answer("WHY", 3)], answers
            assert all(type(answer) is Answer for answer in answers)
            print("answered", *answers)


    if __name__ == "__main__":
        asyncio.run(main())
"""


def test_a_script_serves_classes_of_its_own_and_its_items_travel_both_ways(tmp_path):
    write(tmp_path / "main.py", MAIN)
    done = run("main.py", folder=tmp_path)
    assert done.stderr == ""
    assert done.stdout == "answered Answer(text='WHAT', length=4) Answer(text='WHY', length=3)\n"
    assert done.returncode == 0


def test_a_script_may_be_started_from_another_folder_and_import_its_neighbours(tmp_path):
    write(tmp_path / "app" / "neighbour.py", "FACTOR = 3\n")
    write(
        tmp_path / "app" / "main.py",
        """
        import neighbour
        import penstock as ps

        def triple(x: int) -> int:
            return x * neighbour.FACTOR

        if __name__ == "__main__":
            with ps.Service(triple).blocking() as service:
                print(service.predict(4))
        """,
    )
    (tmp_path / "elsewhere").mkdir()
    done = run("../app/main.py", folder=tmp_path / "elsewhere")
    assert (done.stdout, done.stderr, done.returncode) == ("12\n", "", 0)


@pytest.mark.parametrize("module", ["pkg.main", "pkg"])
def test_a_package_run_with_dash_m_serves_classes_of_its_own(tmp_path, module):
    write(tmp_path / "pkg" / "__init__.py", "")
    write(tmp_path / "pkg" / "words.py", "")
    relative = MAIN.replace("import msgspec\n", "import msgspec\n\n    from . import words\n")
    write(tmp_path / "pkg" / ("main.py" if module == "pkg.main" else "__main__.py"), relative)
    done = run("-m", module, folder=tmp_path)
    assert done.stderr == ""
    assert done.stdout.startswith("answered")


def test_an_unguarded_script_is_told_what_it_lacks(tmp_path):
    write(
        tmp_path / "main.py",
        """
        import asyncio
        import penstock as ps

        class Double(ps.Stage):
            def predict(self, x: int) -> int:
                return x * 2

        async def main() -> None:
            async with ps.Service(Double) as service:
                print(await service.predict(1))

        asyncio.run(main())
        """,
    )
    done = run("main.py", folder=tmp_path)
    assert done.returncode == 1
    assert 'move the code that starts it under `if __name__ == "__main__":`' in done.stderr
    assert "while a worker process imports this script" in done.stderr
    assert done.stdout == ""


def test_an_unguarded_blocking_script_is_told_what_it_lacks(tmp_path):
    write(
        tmp_path / "main.py",
        """
        import penstock as ps

        def double(x: int) -> int:
            return x * 2

        with ps.Service(double).blocking() as service:
            print(service.predict(1))
        """,
    )
    done = run("main.py", folder=tmp_path)
    assert done.returncode == 1
    assert 'under `if __name__ == "__main__":`' in done.stderr


def test_a_stage_defined_only_under_the_guard_is_told_so(tmp_path):
    write(
        tmp_path / "main.py",
        """
        import penstock as ps

        if __name__ == "__main__":
            def double(x: int) -> int:
                return x * 2

            with ps.Service(double).blocking() as service:
                print(service.predict(1))
        """,
    )
    done = run("main.py", folder=tmp_path)
    assert done.returncode == 1
    assert "has no double in the worker: is it defined only under" in done.stderr


INTERACTIVE = """
import penstock as ps
class Double(ps.Stage):
    def predict(self, x: int) -> int:
        return x * 2

service = ps.Service(Double, inline={inline})
with service.blocking() as s: print(s.predict(2))

"""


def test_a_class_of_a_command_line_or_a_session_is_refused_and_inline_takes_it(tmp_path):
    for inline in (False, True):
        text = INTERACTIVE.format(inline=inline)
        for done in (run("-c", text, folder=tmp_path), run("-i", "-q", folder=tmp_path, stdin=text)):
            if inline:
                assert "4" in done.stdout
            else:
                assert "defined in an interactive session or notebook" in done.stderr
                assert "inline=True" in done.stderr
                assert "4" not in done.stdout


def test_a_module_that_cannot_be_imported_in_the_worker_fails_the_start_with_its_traceback(tmp_path):
    write(
        tmp_path / "fickle.py",
        """
        import sys
        import penstock as ps

        if "penstock.worker.loading" in sys.modules and sys.argv[0].endswith("worker/__main__.py"):
            raise ImportError("not in a worker")

        def double(x: int) -> int:
            return x * 2
        """,
    )
    write(
        tmp_path / "main.py",
        """
        import fickle
        import penstock as ps

        if __name__ == "__main__":
            with ps.Service(fickle.double).blocking() as service:
                print(service.predict(1))
        """,
    )
    done = run("main.py", folder=tmp_path)
    assert done.returncode == 1
    assert (
        "penstock.errors.StartFailed: worker 0 of stage 'double' could not be set up: ImportError: not in a worker"
        in done.stderr
    )
    assert 'fickle.py", line 6' in done.stderr


def test_the_main_script_is_imported_under_another_name_and_argv_and_path_are_left_alone(tmp_path):
    write(
        tmp_path / "main.py",
        """
        import sys
        import penstock as ps

        NAME = __name__

        def look(x: int) -> list[str]:
            return [NAME, sys.modules["__main__"].NAME, str(sys.path[0].endswith("app") or sys.path[0])]

        if __name__ == "__main__":
            sys.path.insert(0, "/made/up/app")
            with ps.Service(look).blocking() as service:
                print(*service.predict(1))
        """,
    )
    done = run("main.py", folder=tmp_path)
    assert done.stdout == "__penstock_main__ __penstock_main__ True\n"


def test_ctrl_c_ends_a_script_and_its_workers_without_noise_from_the_workers(tmp_path):
    import signal

    write(
        tmp_path / "main.py",
        """
        import os, signal, time
        import penstock as ps

        def nap(x: float) -> int:
            time.sleep(x)
            return os.getpid()

        if __name__ == "__main__":
            with ps.Service(nap).blocking() as service:
                print(service.predict(0), flush=True)
                service.predict(0.2)
                os.killpg(0, signal.SIGINT)
                time.sleep(30)
        """,
    )
    program = subprocess.Popen(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    out, err = program.communicate(timeout=LIMIT)
    assert program.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1
    assert "KeyboardInterrupt" in err
    with pytest.raises(ProcessLookupError):
        os.kill(int(out), 0)


def test_a_program_that_ends_without_stopping_its_service_ends(tmp_path):
    write(
        tmp_path / "main.py",
        """
        import asyncio
        import penstock as ps

        def double(x: int) -> int:
            return x * 2

        async def main() -> None:
            await service.start()
            print(await service.predict(1), service.engine.stages[0].workers[0].pid, flush=True)

        if __name__ == "__main__":
            service = ps.Service(double)
            asyncio.run(main())
        """,
    )
    done = run("main.py", folder=tmp_path)
    assert done.returncode == 0
    answer, pid = done.stdout.split()
    assert answer == "2"
    # It may still be on its way out.
    for _ in range(1000):
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            break
        os.sched_yield()


def test_a_fork_that_drops_or_stops_the_service_leaves_its_parents_workers_alone(tmp_path):
    write(
        tmp_path / "main.py",
        """
        import asyncio, gc, os
        import penstock as ps

        def pid(x: int) -> int:
            return os.getpid()

        if __name__ == "__main__":
            loop = asyncio.new_event_loop()
            service = ps.Service(pid)
            loop.run_until_complete(service.start())
            before = loop.run_until_complete(service.predict(0))
            for stops in (False, True):
                child = os.fork()
                if child == 0:
                    if stops:
                        asyncio.run(service.stop())
                        assert service.state is ps.State.STOPPED
                    service = None
                    gc.collect()
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
            assert loop.run_until_complete(service.predict(0)) == before
            loop.run_until_complete(service.stop())
            print("unharmed")
        """,
    )
    done = run("-W", "always::ResourceWarning", "main.py", folder=tmp_path)
    assert done.stdout == "unharmed\n"
    assert "never stopped" not in done.stderr


def test_an_exception_class_of_the_script_is_known_by_the_name_it_has_there(tmp_path):
    write(
        tmp_path / "main.py",
        """
        import penstock as ps

        class TooCold(Exception):
            pass

        def check(x: int) -> int:
            raise TooCold(x)

        if __name__ == "__main__":
            with ps.Service(check).blocking() as service:
                try:
                    service.predict(1)
                except ps.StageFailed as failure:
                    print(failure.type_name, failure.is_a(TooCold), failure.is_a(ValueError))
        """,
    )
    done = run("main.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "__main__.TooCold True False\n")


def test_a_script_in_a_folder_whose_name_is_not_utf8_runs(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/mod\xe8le"))
    script = """
        import sys
        from pathlib import Path

        sys.path += [Path("/nowhere"), "/mod\\udce8le"]
        import penstock as ps
        from helper import double

        def predict(x: int) -> int:
            assert "/mod\\udce8le" in sys.path
            return double(x)

        if __name__ == "__main__":
            with ps.Service(predict).blocking() as s:
                print(s.predict(3))
    """
    write(folder / "helper.py", "def double(x): return 2 * x")
    done = run(write(folder / "main.py", script), folder=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "6\n", "")


WHAT_A_WORKER_LOADED = """
    import sys

    import penstock as ps


    class Loaded(ps.Stage):
        def predict(self, name: str) -> bool:
            return name in sys.modules


    service = ps.Service(Loaded)

    if __name__ == "__main__":
        with service.blocking() as running:
            print(*(name for name in ("asyncio", "ssl", "uvloop", "subprocess", "penstock.runtime.engine")
                    if running.predict(name)), ".")
"""


def test_a_worker_loads_no_event_loop_though_its_module_describes_a_service(tmp_path):
    """Each worker would have 8 MB more."""
    ended = run(write(tmp_path / "app.py", WHAT_A_WORKER_LOADED), folder=tmp_path)
    assert (ended.stdout, ended.stderr, ended.returncode) == (".\n", "", 0)


WHAT_A_FIRST_USE_LOADS = """
    import sys

    import penstock as ps


    def double(x):
        return 2 * x


    service = ps.Service(double)

    if __name__ == "__main__":
        before = set(sys.modules)
        service.check_process()
        with service.blocking() as running:
            print(running.predict(3), *sorted(set(sys.modules) - before - {"__penstock_main__"}))
"""


def test_the_first_use_of_a_service_imports_nothing(tmp_path):
    """A fork in the middle of an import would wait for its lock for ever, and a signal handler meet half a module."""
    ended = run(write(tmp_path / "app.py", WHAT_A_FIRST_USE_LOADS), folder=tmp_path)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("6\n", "", 0)
