"""`penstock training`: see how a training run is, and have a failed one go on.

Exit status: 0 well; 1 where the run has failed, is not there, or cannot go on because it has not failed; 2 wrongly
called; 130 interrupted while it was watched, which changes nothing for the run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from penstock.codec.text import printable
from penstock.errors import TrainingError

Action = Callable[[argparse.Namespace], int]

WATCH_SECONDS: Final = 1.0


def add_training_command(commands: Any) -> None:
    """The command `training` and its own commands, below those of `penstock`."""
    parser = commands.add_parser(
        "training",
        help="show the state of a training run, and retry a failed one",
        description="Show the state of a training run, and retry a failed one.",
    )
    own = parser.add_subparsers(required=True, metavar="COMMAND")
    status = _add(own, "status", _status, "show the tasks of a run, its workers, and the failed attempts")
    status.add_argument("--json", action="store_true", help="print a JSON object instead of tables")
    status.add_argument(
        "--watch", action="store_true", help="repeat once a second, until the run is done or has failed"
    )
    _add(own, "retry", _retry, "give the tasks of a failed run all their attempts again")


def _add(own: Any, name: str, action: Action, words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = own.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
    parser.add_argument("path", metavar="DIR", help="directory of the run")
    parser.set_defaults(run=action)
    return parser


def _status(arguments: argparse.Namespace) -> int:
    from penstock.cli.training_shown import status_shown
    from penstock.training.run_status import RunState, read_status

    folder = Path(arguments.path).absolute()
    with status_shown(as_json=arguments.json, watched=arguments.watch) as show:
        while True:
            status = read_status(folder)
            show(status)
            if not arguments.watch or status.state in (RunState.DONE, RunState.FAILED):
                return 1 if status.state is RunState.FAILED else 0
            time.sleep(WATCH_SECONDS)


def _retry(arguments: argparse.Namespace) -> int:
    from penstock.cli.printing import print_shown, readable_path
    from penstock.training.training_run import open_run

    folder = Path(arguments.path).absolute()
    with closing(open_run(folder)) as store:
        if not store.retry():
            raise TrainingError(f"the run in {folder} has not failed, so nothing was changed")
    words = f"the run in {printable(readable_path(folder))} continues where it stopped: start its workers again"
    print_shown(words, done=words)
    return 0
