"""One roll: both replicas are replaced behind one proxy, under load."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from callers import Callers, PythonCallers
from judging import Outcome, judge
from node_callers import NodeCallers
from proxy import Proxy
from replica import Replica
from telling import tell, until

MORE = 100
"""How many answers each language gets before the roll, and again behind it."""


def roll(name: str, folder: Path, replicas: Sequence[Replica], runs: Path, node: bool) -> Outcome:
    """Replace both replicas behind the proxy `name`; with callers in Node, if there can be any."""
    runs.write_text("")
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(name, folder, replicas))
        tell(name, f"listens on {proxy.url}, in front of two replicas")
        callers: list[Callers] = [stack.enter_context(PythonCallers(proxy.url))]
        if node:
            callers.append(stack.enter_context(NodeCallers(proxy.url)))

        def how_it_goes() -> str:
            return f"{name:10}" + ", ".join(f"{each}, {len(each.failed)} failed" for each in callers)

        def go_on() -> None:
            enough = [len(each.answered) + MORE for each in callers]
            until(lambda: all(len(c.answered) >= n for c, n in zip(callers, enough, strict=True)), how_it_goes)

        go_on()
        began = time.monotonic()
        for replica in replicas:
            replica.replace(how_it_goes)
        took = time.monotonic() - began
        go_on()
    outcome = judge(name, callers, runs)
    tell(name, f"both replaced in {took:.1f} s: {', '.join(map(str, callers))}; {outcome}")
    return outcome
