"""Draw the pictures of the documentation from the sources, between the markers of a page.

    python docs/pictures.py --check    # exit 1 where a page shows something else than the sources say
    python docs/pictures.py --write    # draw what is stale

A picture stands between `<!-- picture: NAME -->` and `<!-- end of picture -->`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Protocol, TypeAlias

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from layer_rules import FRONT, LEVELS, Graph, Tree, import_graph, layer_of, read_tree, shortest_path, without
from penstock.core.item import OFFER, SEND, ItemState
from penstock.core.moves import IllegalMove, Move
from penstock.jobs.rules import job_states
from penstock.jobs.rules.attempts import FailureCause, judge
from penstock.jobs.rules.job_states import JobState
from penstock.runtime import slot_states
from penstock.runtime.slot_states import SlotState
from penstock.server.http1.states import MOVES, ConnectionState
from penstock.training.rules import task_states
from penstock.training.rules.task_states import TaskState

DOCS = Path(__file__).resolve().parent
MARKED = re.compile(r"^<!-- picture: (?P<name>.+?) -->\n.*?^<!-- end of picture -->$", re.MULTILINE | re.DOTALL)

Row: TypeAlias = tuple[str, str, str]
"""A legal move: its name, the state it starts from, and the state it leads to."""


# -- layers -----------------------------------------------------------------------------------------------------------


def layer_graph(tree: Tree) -> Graph:
    """Which layer imports which.  The front of the package is no layer: it names everything, for those who use it."""
    layers: Graph = defaultdict(set)
    for file, others in import_graph(tree).items():
        if file != FRONT:
            layers[layer_of(file)] |= {layer_of(there) for there in others if there != FRONT} - {layer_of(file)}
    return dict(layers)


def reduced(graph: Graph) -> Graph:
    """The graph less every arrow that follows from others: each layer is reached from where it was before."""
    for start in sorted(graph):
        for end in sorted(graph[start]):
            smaller = without(graph, [(start, end)])
            if shortest_path(smaller, start, end) is not None:
                graph = smaller
    return graph


def layer_picture(tree: Tree) -> str:
    """The layers as a Mermaid flowchart: the highest level on top, an arrow from a layer to what it imports."""
    graph = layer_graph(tree)
    lines = ["flowchart TD"]
    for level in sorted({LEVELS[layer] for layer in graph}, reverse=True):
        lines.append(f'    subgraph level{level} ["level {level}"]')
        lines += [f"        {layer}" for layer in sorted(graph) if LEVELS[layer] == level]
        lines.append("    end")
    for layer, others in sorted(reduced(graph).items()):
        lines += [f"    {layer} --> {other}" for other in sorted(others)]
    return "\n".join(lines) + "\n"


# -- states -----------------------------------------------------------------------------------------------------------


class Moves(Protocol):
    """One kind of move of a table: looked up by a state, it gives the next one or raises IllegalMove."""

    name: str

    def __getitem__(self, state: Any) -> Enum: ...


def word(state: Enum) -> str:
    """A state as it is called in errors."""
    return state.name.lower().replace("_", " ")


def legal_moves(tables: Iterable[Moves], states: Iterable[Enum]) -> list[Row]:
    """The rows of tables, found by trying each move from each state."""
    rows = []
    for move, state in product(tables, states):
        with suppress(IllegalMove):
            rows.append((move.name, word(state), word(move[state])))
    return rows


def item_moves() -> list[Row]:
    """The moves of an item, and settling, which is legal from every state and has no table."""
    end = ItemState.SETTLED
    settling = [("settle", word(state), word(end)) for state in ItemState if state is not end]
    return legal_moves((OFFER, SEND), ItemState) + settling


def slot_moves() -> list[Row]:
    """The moves of a worker's slot, in the order of their tables."""
    tables = [value for value in vars(slot_states).values() if isinstance(value, Move)]
    return legal_moves(tables, SlotState)


def causes_of_ends() -> tuple[list[str], list[str], list[str]]:
    """The causes by which an attempt may end its run, by which the job rests, and by which it waits again at once."""
    lasts = [c for c in FailureCause if judge({c: 99}, c, alone=True, backoff=1, draw=1).dead]
    goes_on = {
        c: judge({}, c, alone=True, backoff=1, draw=1) for c in FailureCause if c is not FailureCause.LEASE_EXPIRED
    }  # a claim finds it
    rests = [c for c, judged in goes_on.items() if judged.rest]
    return lasts, rests, [c for c, judged in goes_on.items() if not judged.rest and not judged.dead]


def job_moves() -> list[Row]:
    """The moves of a job, each with what causes it."""
    lasts, rests, at_once = map(", ".join, causes_of_ends())
    why = {
        job_states.FALL_DUE: "its moment has come",
        job_states.CLAIM: "by a consumer",
        job_states.RELEASE: at_once,
        job_states.POSTPONE: rests,
        job_states.SUCCEED: "its holder commits a result",
        job_states.GIVE_UP: f"the last {lasts}",
        job_states.CANCEL: "its submitter asks",
        job_states.EXPIRE: "its deadline has passed",
        job_states.RETRY: "somebody asks",
    }
    return _with_causes(job_states.MOVES, JobState, why, taken_again=FailureCause.LEASE_EXPIRED.value)


def task_moves() -> list[Row]:
    """The moves of a task of a training run, each with what causes it."""
    why = {
        task_states.CLAIM: "by a worker",
        task_states.FINISH: "its function returned",
        task_states.GIVE_BACK: "its function raised, its worker was interrupted, a retry finds its lease run out",
        task_states.GIVE_UP: "the last attempt failed, the lease of the last attempt ran out",
        task_states.RETRY: "somebody asks",
    }
    return _with_causes(task_states.MOVES, TaskState, why, taken_again="its lease ran out")


def _with_causes(
    tables: Iterable[Move[Any]], states: Iterable[Enum], why: Mapping[Move[Any], str], *, taken_again: str
) -> list[Row]:
    """Legal moves, each with what causes it; `taken_again` is the cause of one that ends where it started."""
    return [
        (f"{name} ({taken_again if start == end else why[table]})", start, end)
        for table in tables
        for name, start, end in legal_moves([table], states)
    ]


def state_diagram(
    moves: Iterable[Row], *, begins: Sequence[str] = (), ends: Sequence[str] = (), stays: bool = False
) -> str:
    """A Mermaid state diagram of legal moves.

    Life begins in the states `begins`, without them in that which the first row starts from, and ends in the states
    `ends`, without them in each that no row leaves.  Moves between the same two states share an arrow.  A move that
    stays where it is has one only with `stays`.
    """
    rows = [row for row in moves if stays or row[1] != row[2]]
    names = dict.fromkeys(state for _, *states in rows for state in states)
    ids = {name: name.replace(" ", "_") for name in names}
    arrows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, start, end in rows:
        arrows[start, end].append(name)
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{name}" as {ids[name]}' for name in names if ids[name] != name]
    lines += [f"    [*] --> {ids[name]}" for name in begins or [rows[0][1]]]
    lines += [f"    {ids[start]} --> {ids[end]}: {', '.join(labels)}" for (start, end), labels in arrows.items()]
    left = {start for _, start, _ in rows}
    lines += [f"    {ids[name]} --> [*]" for name in names if (name in ends if ends else name not in left)]
    return "\n".join(lines) + "\n"


# -- pages ------------------------------------------------------------------------------------------------------------

PICTURES = {
    "layers": lambda: layer_picture(read_tree()),
    "states of an item": lambda: state_diagram(item_moves()),
    "states of a worker's slot": lambda: state_diagram(slot_moves()),
    "states of a job": lambda: state_diagram(
        job_moves(), begins=["scheduled", "queued"], ends=[word(state) for state in job_states.ENDED], stays=True
    ),
    "states of a task": lambda: state_diagram(
        task_moves(), ends=[word(TaskState.DONE), word(TaskState.FAILED)], stays=True
    ),
    "states of a connection": lambda: state_diagram(legal_moves(MOVES, ConnectionState)),
}


@cache
def picture(name: str) -> str:
    """A picture as it stands in a page, drawn once.  Raises KeyError where nobody draws it."""
    return f"<!-- picture: {name} -->\n```mermaid\n{PICTURES[name]()}```\n<!-- end of picture -->"


def drawn(page: str) -> str:
    """The text of a page with its pictures drawn anew."""
    return MARKED.sub(lambda found: picture(found["name"]), page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or write the pages; the exit status."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the documentation from the sources.")
    wish = parser.add_mutually_exclusive_group(required=True)
    wish.add_argument("--check", action="store_true", help="exit 1 where a page is stale")
    wish.add_argument("--write", action="store_true", help="draw what is stale")
    parser.add_argument("pages", nargs="*", type=Path, default=sorted(DOCS.rglob("*.md")), help="default: all of docs/")
    options = parser.parse_args(arguments)
    stale = [page for page in options.pages if drawn(page.read_text()) != page.read_text()]
    for page in stale:
        print(f"{page}: {'stale, draw it with `make pictures`' if options.check else 'drawn anew'}")
        if options.write:
            page.write_text(drawn(page.read_text()))
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
