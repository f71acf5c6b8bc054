"""`penstock jobs`: submit jobs to a queue, see and change what is in it, and check its store.

Exit status: 0 well; 1 where a job has failed, is not there, or has not ended in time; 2 wrongly called; 130 interrupted
while it waited, which changes nothing for the jobs.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from penstock.cli.jobs_shown import show_jobs, show_numbers, write_bytes, write_lines
from penstock.cli.jobs_submit import submit_from
from penstock.cli.options import WronglyCalled
from penstock.cli.queue_url import add_queue_flags, needed_queue_url
from penstock.errors import ConfigError, JobConflict, JobError, JobNotFound, PenstockError
from penstock.hosting.stdio import fill_standard_streams, is_terminal, write_stderr_line
from penstock.jobs.endings import refuse_without_result
from penstock.jobs.job import Job
from penstock.jobs.new_jobs import MAX_INLINE
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.submitting import JobQueue, connect
from penstock.option_fields import flag_name

FAILED: Final = 1
JOB_STATES: Final = tuple(state.value for state in JobState)
_DEAD_COLUMNS: Final = ("id", "generation", "failures", "created_at", "finished_at", "service", "error")
Action = Callable[[JobQueue, argparse.Namespace], int]


def add_jobs_command(commands: Any) -> None:
    """The command `jobs` and its own commands, below those of `penstock`."""
    parser = commands.add_parser(
        "jobs",
        help="submit jobs to a queue, and show their state",
        description="Submit jobs to a queue, and show and change its content.",
    )
    own = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_submit(own)
    _add_ids(own, "status", _status, "show jobs")
    result = _add(own, "result", _result, "write the result of a job to standard output")
    result.add_argument("id", metavar="ID", help="job id")
    result.add_argument(
        "--wait", metavar="SECONDS", help="maximum seconds to wait for the end of the job; inf: no limit (default 0)"
    )
    result.add_argument("--file", metavar="PATH", help="write the result to this file")
    wait = _add_ids(own, "wait", _wait, "wait until jobs have ended, and show them")
    wait.add_argument("--timeout", metavar="SECONDS", help="maximum seconds to wait; inf: no limit (default inf)")
    _add_ids(own, "cancel", _each(JobQueue.cancel), "cancel jobs that have not ended")
    _add_ids(own, "retry", _each(JobQueue.retry), "retry jobs that are dead, cancelled or expired")
    listing = _add(own, "list", _list, "list the jobs of the queue, oldest first")
    listing.add_argument("--state", metavar="STATE", help=f"only jobs in this state: {', '.join(JOB_STATES)}")
    dead = _add(own, "dead", _dead, "list the dead jobs and their errors")
    for paged in (listing, dead):
        paged.add_argument("--limit", metavar="N", default="100", help="maximum jobs (default %(default)s)")
        paged.add_argument("--after", metavar="ID", help="only jobs that were submitted after this one")
    purge = _add(own, "purge", _purge, "delete jobs and their results")
    purge.add_argument("--state", metavar="STATE", help="only jobs in this state; all: in every state but running")
    purge.add_argument(
        "--older-than",
        metavar="SECONDS",
        default="0",
        help="only jobs that ended at least this long ago (default %(default)s)",
    )
    _add(own, "pause", _pause, "pause the queue: workers claim no job until `resume`")
    _add(own, "resume", _resume, "resume a paused queue")
    _add(own, "stats", _stats, "show the number of jobs in each state")
    _add_doctor(own)


def _add(own: Any, name: str, action: Action, words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = own.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
    add_queue_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line, with the fields of a job")
    parser.set_defaults(run=lambda arguments: _run(action, arguments))
    return parser


def _add_ids(own: Any, name: str, action: Action, words: str) -> argparse.ArgumentParser:
    parser = _add(own, name, action, words)
    parser.add_argument("ids", nargs="+", metavar="ID", help="job ids")
    return parser


def _add_doctor(own: Any) -> None:
    parser = own.add_parser(
        "doctor",
        help="check the configuration of the queue's store",
        description="Check the configuration of a queue's store, and report problems and how to fix them.",
    )
    add_queue_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line instead of a table")
    parser.set_defaults(run=_look_at_store)


def _look_at_store(arguments: argparse.Namespace) -> int:
    from penstock.cli.doctor import diagnose

    url = needed_queue_url(arguments.queue_url, arguments.queue_url_file, os.environ)
    return diagnose(url, as_json=arguments.json)


def _add_submit(own: Any) -> None:
    parser = _add(own, "submit", submit_from, "submit a job, or one for each line of a file")
    parser.add_argument("input", nargs="?", metavar="JSON", help="the input as JSON, such as '{\"x\": 1}'")
    parser.add_argument("--file", metavar="PATH", help="read the input from this file; -: standard input")
    parser.add_argument("--jsonl", metavar="PATH", help="read one JSON input per line of this file; -: standard input")
    parser.add_argument("--input-url", metavar="URL", help="URL of the input, which the worker fetches")
    parser.add_argument(
        "--content-type", metavar="TYPE", help="media type of the input (default by the name of the file)"
    )
    parser.add_argument(
        "--output-url", metavar="URL", help="write the result to this URL (default: store it in the queue)"
    )
    parser.add_argument(
        "--accept", metavar="TYPE", help="media type of the result (default: the first that the service supports)"
    )
    parser.add_argument("--priority", metavar="N", help="priority; higher is claimed first (default 0)")
    parser.add_argument("--delay", metavar="SECONDS", help="seconds before the job may be claimed")
    parser.add_argument("--deadline", metavar="MOMENT", help="latest start, in Unix seconds (default: no deadline)")
    parser.add_argument("--key", metavar="TEXT", help="idempotency key: the same key and input give the same job")
    parser.add_argument("--id", metavar="ID", help="the job's id (default: a new one)")
    parser.add_argument("--service", metavar="NAME", help="name of the service (default: any)")
    parser.add_argument(
        "--max-inline-bytes",
        metavar="BYTES",
        default=str(MAX_INLINE),
        help="maximum bytes of an input (default %(default)s)",
    )


def _run(action: Action, arguments: argparse.Namespace) -> int:
    fill_standard_streams()
    if sys.stdout is None:  # it was closed when Python started
        raise PenstockError("standard output is closed, so nothing was done: the output would be lost")
    url = needed_queue_url(arguments.queue_url, arguments.queue_url_file, os.environ)
    if "max_inline_bytes" in arguments:
        arguments.max_inline_bytes = _number(arguments, "max_inline_bytes", int)
    with connect(url, max_inline_bytes=getattr(arguments, "max_inline_bytes", MAX_INLINE)) as queue:
        try:
            return action(queue, arguments)
        except ConfigError as error:
            raise WronglyCalled(error) from None


def _number(arguments: argparse.Namespace, name: str, kind: type[int | float]) -> Any:
    """The number that a flag says, from 0 on."""
    text = getattr(arguments, name)
    try:
        value = kind(text)
    except ValueError:
        raise WronglyCalled(ConfigError(f"{flag_name(name)}: expected a number, got {text!r}")) from None
    if not value >= 0:
        raise WronglyCalled(ConfigError(f"{flag_name(name)} must be at least 0, got {text}"))
    return value


def _patience(arguments: argparse.Namespace, name: str, default: float) -> float | None:
    """The seconds to wait; None is for ever."""
    seconds: float = default if getattr(arguments, name) is None else _number(arguments, name, float)
    return None if seconds == math.inf else seconds


# -- what is asked ----------------------------------------------------------------------------------------------------


def _status(queue: JobQueue, arguments: argparse.Namespace) -> int:
    return _show_each(queue.get, arguments)


def _each(change: Callable[[JobQueue, str], Job]) -> Action:
    """Make `change` to each job that is named, also after one that does not take it."""
    return lambda queue, arguments: _show_each(lambda job_id: change(queue, job_id), arguments, asked=True)


def _show_each(ask: Callable[[str], Job], arguments: argparse.Namespace, *, asked: bool = False) -> int:
    """Show the jobs; `asked` says that their state is what was asked for, and so no failure."""
    found: list[Job] = []
    wrong = False
    for job_id in arguments.ids:
        try:
            found.append(ask(job_id))
        except (JobNotFound, JobConflict) as error:
            write_stderr_line(str(error))
            wrong = True
    show_jobs(found, as_json=arguments.json)
    return FAILED if wrong or (not asked and _any_failed(found)) else 0


def _any_failed(jobs: Sequence[Job]) -> bool:
    return any(job.is_finished and job.state is not JobState.SUCCEEDED for job in jobs)


def _wait(queue: JobQueue, arguments: argparse.Namespace) -> int:
    timeout = _patience(arguments, "timeout", math.inf)
    try:
        jobs = queue.wait(arguments.ids, timeout)
    except TimeoutError as error:
        write_stderr_line(str(error))
        return FAILED
    except KeyboardInterrupt:
        return _interrupted()
    show_jobs(jobs, as_json=arguments.json)
    return FAILED if _any_failed(jobs) else 0


def _result(queue: JobQueue, arguments: argparse.Namespace) -> int:
    watch = queue.result_poller(arguments.id, _patience(arguments, "wait", 0.0))
    try:
        queue.run_poller(watch)
    except TimeoutError as error:
        write_stderr_line(str(error))
        return FAILED
    except KeyboardInterrupt:
        return _interrupted()
    (job,) = watch.jobs
    refuse_without_result(job)
    stored = watch.stored
    assert stored is not None, "a job that has succeeded has a result"
    if stored.output_url is not None:
        if arguments.file is not None:
            raise JobError(
                f"the result is not in the queue, so it cannot be written to a file: it is at {stored.output_url}"
            )
        write_lines([stored.output_url])
    elif arguments.file is not None:
        _write_file(arguments.file, stored.body)
    elif _is_text(stored.content_type):
        write_bytes(stored.body + b"\n")
    elif is_terminal(sys.stdout):
        raise JobError(f"the result is {stored.content_type}, which cannot be shown in a terminal: use --file PATH")
    else:
        write_bytes(stored.body)
    return 0


def _is_text(content_type: str) -> bool:
    name = content_type.partition(";")[0].strip().lower()
    return name == "application/json" or name.startswith("text/")


def _write_file(file: str, body: bytes) -> None:
    try:
        Path(file).write_bytes(body)
    except (OSError, ValueError) as error:
        raise PenstockError(f"--file {file}: {getattr(error, 'strerror', None) or error}") from None


def _interrupted() -> int:
    write_stderr_line("interrupted; the jobs continue")
    return 128 + signal.SIGINT


def _list(queue: JobQueue, arguments: argparse.Namespace) -> int:
    jobs = queue.list(arguments.state, _number(arguments, "limit", int), arguments.after)
    show_jobs(jobs, as_json=arguments.json)
    return 0


def _dead(queue: JobQueue, arguments: argparse.Namespace) -> int:
    jobs = queue.list(JobState.DEAD, _number(arguments, "limit", int), arguments.after)
    show_jobs(jobs, as_json=arguments.json, columns=_DEAD_COLUMNS)
    return 0


def _stats(queue: JobQueue, arguments: argparse.Namespace) -> int:
    show_numbers(queue.stats(), as_json=arguments.json)
    return 0


# -- what is changed --------------------------------------------------------------------------------------------------


def _purge(queue: JobQueue, arguments: argparse.Namespace) -> int:
    if arguments.state is None:
        raise ConfigError("purge needs --state STATE, or --state all for every state but running")
    state = None if arguments.state == "all" else arguments.state
    count = queue.purge(state, _number(arguments, "older_than", float))
    write_lines([f'{{"purged":{count}}}' if arguments.json else f"{count} jobs purged"])
    return 0


def _pause(queue: JobQueue, arguments: argparse.Namespace) -> int:
    queue.pause()
    return _stats(queue, arguments) if arguments.json else 0


def _resume(queue: JobQueue, arguments: argparse.Namespace) -> int:
    queue.resume()
    return _stats(queue, arguments) if arguments.json else 0
