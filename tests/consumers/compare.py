"""Hold the table of consumers in docs/reference/frameworks.md to the consumers, cell by cell, by comparing numbers.

    python tests/consumers/compare.py    # `make consumers` has made what it needs

Three models are saved as artifacts.  Each consumer answers the same batches, by the signature of encoded inputs and by
that of raw features, and what it answers is compared with what Keras does.  A consumer that is not here is skipped, and
named.  The exit status is 1 where a cell differs from the page, in either direction.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
from rich.console import Console

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
PAGE: Final = ROOT / "docs" / "reference" / "frameworks.md"
PACKAGES: Final = ROOT / ".venv-consumers"
CONVERTER: Final = PACKAGES / "bin" / "tensorflowjs_converter"
MODEL_SERVER: Final = "tensorflow_model_server"
TOLERANCE: Final = 1e-5
"""Absolute, and relative: that of `save`."""
LIMIT: Final = 600.0
"""Seconds that a consumer may take for one model."""
START_LIMIT: Final = 120.0
"""Seconds in which the model server is ready."""
SIGNATURES: Final = ("model", "serving_default")
CELLS: Final = {"yes", "no: other numbers", "no: answered", "no: unsupported op", "untried"}
"""What the page may say.  "untried" is what nobody has seen: it differs from all that is."""
UNSUPPORTED: Final = re.compile(
    "neither a custom op nor a flex op|Select TensorFlow op|Unsupported Ops in the model"
    # TensorFlow.js reads a second input of each EnsureShape, which has one: github.com/tensorflow/tfjs/issues/7690
    "|reading 'split'"
)
"""What the messages of converters and runtimes have where they lack an op."""
REFUSAL: Final = "an id is not between"
"""What the message has where raw features are refused."""

LINE: Final = "{:34} {:16} {:27} {:19} {:>8}  {}"
"""Of what is printed; "furthest" is the largest difference from what Keras answers."""

Answers = dict[str, Any]
"""Of each batch: its rows, or the message of an error."""


@dataclass(frozen=True)
class Asked:
    """Some batches for one model and one signature."""

    saved_model: Path
    signature: str
    batches: Mapping[str, Mapping[str, Any]]
    folder: Path
    """Empty; whoever answers may write there."""

    def answered_by(self, *command: str | Path) -> Answers:
        """What a program answers, which is called with two files more: what is asked, and where its answers belong."""
        batches, answers = self.folder / "batches.json", self.folder / "answers.json"
        batches.write_text(json.dumps(self.batches))
        failed = self.failed(*command, batches, answers)
        return dict.fromkeys(self.batches, failed) if failed else json.loads(answers.read_text())

    def failed(self, *command: str | Path) -> str:
        """Run a program; how it ended, where that was not well."""
        done = subprocess.run([*command], capture_output=True, text=True, timeout=LIMIT, check=False)
        return f"status {done.returncode}: {done.stderr.strip()}" if done.returncode else ""


def tensorflow(way: str) -> Callable[[Asked], Answers]:
    """TensorFlow without Keras, or TFLite as a call of its converter makes it."""
    program = (sys.executable, HERE / "in_tensorflow.py", way)
    return lambda asked: asked.answered_by(*program, asked.saved_model, asked.signature)


def tensorflow_js(asked: Asked) -> Answers:
    """TensorFlow.js under Node."""
    converted = asked.folder / "converted"
    flags = ("--input_format=tf_saved_model", f"--signature_name={asked.signature}")
    failed = asked.failed(CONVERTER, *flags, asked.saved_model, converted)
    if failed:
        return dict.fromkeys(asked.batches, failed)
    return asked.answered_by("node", HERE / "in_node.mjs", PACKAGES, converted)


def model_server(asked: Asked) -> Answers:
    """TensorFlow Serving, over REST."""
    shutil.copytree(asked.saved_model, asked.folder / "versions" / "1")
    with ExitStack() as stack:
        # It takes no port 0 for gRPC, and for REST that means none.
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        grpc, rest = (one.getsockname()[1] for one in sockets)
    flags = (f"--port={grpc}", f"--rest_api_port={rest}", "--model_name=asked")
    command = [MODEL_SERVER, *flags, f"--model_base_path={asked.folder / 'versions'}"]
    log = asked.folder / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{rest}/v1/models", timeout=LIMIT, trust_env=False) as client,
    ):
        try:
            end = time.monotonic() + START_LIMIT
            while not available(client):
                if server.poll() is not None or time.monotonic() > end:
                    return dict.fromkeys(asked.batches, f"not ready: {log.read_text(errors='replace')}")
                time.sleep(0.1)
            return {name: predicted(client, asked.signature, columns) for name, columns in asked.batches.items()}
        finally:
            server.kill()


def available(client: httpx.Client) -> bool:
    """Whether the model server answers by now."""
    try:
        return '"AVAILABLE"' in client.get("/asked").text
    except httpx.TransportError:
        return False


def predicted(client: httpx.Client, signature: str, columns: Mapping[str, Any]) -> Any:
    """What the model server answers to a batch, or the message of its error."""
    # Its JSON has NaN, and no null.
    inputs = {name: [float("nan") if value is None else value for value in column] for name, column in columns.items()}
    body = json.dumps({"signature_name": signature, "inputs": inputs})
    answer = client.post("/asked:predict", content=body).json()
    return answer.get("outputs", answer.get("error"))


CONSUMERS: Final[dict[str, Callable[[Asked], Answers]]] = {
    "TensorFlow alone": tensorflow("plain"),
    "TFLite, `from_concrete_functions`": tensorflow("from_concrete_functions"),
    "TFLite, `from_saved_model`": tensorflow("from_saved_model"),
    "TensorFlow.js": tensorflow_js,
    f"`{MODEL_SERVER}`": model_server,
}
"""By the names that they have in the table."""


def missing() -> dict[str, str]:
    """Which consumers are not here, and why."""
    found = {}
    if not (PACKAGES / ".installed").exists():
        found["TensorFlow.js"] = f"{PACKAGES.name} is not whole: `make {PACKAGES.name}/.installed` says why"
    elif shutil.which("node") is None:
        found["TensorFlow.js"] = "Node is not installed: make node"
    if shutil.which(MODEL_SERVER) is None:
        found[f"`{MODEL_SERVER}`"] = "it is not on the PATH"
    return found


def claimed(page: str) -> tuple[list[str], dict[tuple[str, str], list[str]]]:
    """The names of the batches, and the cells of each consumer and signature, as the page has them."""
    table = re.search(r"^\| consumer \| signature \|.*\n(?:\|.*\n)+", page, re.MULTILINE)
    assert table is not None, f"{PAGE} has no table of consumers"
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines())
    cells = {(consumer, signature.strip("`")): cells for consumer, signature, *cells in rows}
    wanted = [(consumer, signature) for consumer in CONSUMERS for signature in SIGNATURES]
    assert list(cells) == wanted, f"the rows of the table in {PAGE} must be {wanted}"
    unknown = {cell for row in cells.values() for cell in row} - CELLS
    assert not unknown, f"the table in {PAGE} says {unknown}, where it may say {CELLS}"
    return head[2:], cells


def judged(answer: Any, expected: np.ndarray | None) -> tuple[str, str]:
    """What belongs into a cell of the table, and how it is known."""
    if isinstance(answer, str):
        if UNSUPPORTED.search(answer):
            return "no: unsupported op", ""
        if expected is None and REFUSAL in answer:
            return "yes", ""
        return "fails", answer[-2000:]
    if expected is None:
        return "no: answered", ""
    found = np.array(answer, float)
    if found.shape != expected.shape:
        return "fails", f"an answer of shape {found.shape}"
    worst = abs(found - expected).max()  # NaN where there is one, which equals no number
    same = np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    return "yes" if same else "no: other numbers", f"{worst:.1e}"


def say(text: str) -> None:
    """Print a line as it is."""
    Console().out(text, highlight=False)


def main() -> int:
    names, cells = claimed(PAGE.read_text())
    skipped = missing()
    differ = 0
    with tempfile.TemporaryDirectory(prefix="penstock-consumers-") as name:
        folder = Path(name)
        from saved_models import save_all  # with Keras, which the rest does without

        batches = save_all(folder)
        assert names == list(batches), f"the columns of the table in {PAGE} must be {list(batches)}"
        say(LINE.format("consumer", "signature", "batch", "seen", "furthest", "on the page"))
        for consumer, signature in cells:
            if consumer in skipped:
                continue
            answers: Answers = {}
            for model in dict.fromkeys(batch.model for batch in batches.values()):
                mine = {name: b.columns[signature] for name, b in batches.items() if b.model == model}
                with tempfile.TemporaryDirectory(dir=folder) as empty:
                    asked = Asked(folder / model / "saved_model", signature, mine, Path(empty))
                    answers |= CONSUMERS[consumer](asked)
            for batch, told in zip(names, cells[consumer, signature], strict=True):
                seen, detail = judged(answers[batch], batches[batch].expected)
                differ += seen != told
                page = "the same" if seen == told else f"DIFFERS: {told}"
                say(LINE.format(consumer, signature, batch, seen, "" if seen == "fails" else detail, page))
                if seen == "fails":
                    say(detail)
    for consumer, why in skipped.items():
        say(f"skipped: {consumer}: {why}")
    say(f"{differ} cells differ from {PAGE.relative_to(ROOT)}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
