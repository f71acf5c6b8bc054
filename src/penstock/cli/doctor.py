"""Look at how the store of a queue is set up, and say what is wrong and what to do."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.errors import PenstockError
from penstock.jobs.advice import Advice, find_advice
from penstock.jobs.stores.opening import masked, open_store


def diagnose(url: str, console: Console | None = None, *, as_json: bool) -> int:
    """Print what is right and what is wrong with the store at `url`; 0 if nothing is wrong, else 1.

    As JSON it is one object a line, with the fields of `Advice`.

    Raises:
        ConfigError: it is no store that can be used.
        StoreUnavailable: it cannot be reached.
        PenstockError: what was found cannot be written.
    """
    console = console or Console()
    store = open_store(url)
    try:
        found = find_advice(store)
    finally:
        store.close()
    try:
        if as_json:
            for advice in found:
                console.out(msgspec.json.encode(advice).decode(), highlight=False)
        else:
            _print_table(masked(url), found, console)
    except OSError as error:
        raise PenstockError(f"cannot write the results: {error.strerror}") from None
    return 1 if any(advice.wrong for advice in found) else 0


def _print_table(shown: str, found: list[Advice], console: Console) -> None:
    table = Table(title=Text(f"penstock jobs doctor: {shown}"), title_justify="left")
    for column in ("", "what", "found", "finding, and how to fix it"):
        table.add_column(column, overflow="fold")
    for advice in found:
        mark = Text("failed", "red") if advice.wrong else Text("ok", "green")
        table.add_row(mark, Text(advice.what), Text(advice.found), Text(advice.remedy))
    console.print(table)
    wrong = sum(advice.wrong for advice in found)
    console.print(f"{wrong} failed, {len(found) - wrong} ok", highlight=False)
