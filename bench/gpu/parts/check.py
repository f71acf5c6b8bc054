"""`penstock check --measure` on the encoders: does it say what there is to say, and which size to take?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

from encoders import shape_of
from part import Part

LINE = re.compile(r"^stage Encode: batch=ps\.Batch\(max_size=(\d+)\)$", re.MULTILINE)
RATE = re.compile(r"(\d+) at once\W.*?([\d.]+) items/s")
MEMORY = re.compile(r"(memory of [a-z ]+?) +\W (.+?) *\W$", re.MULTILINE)


def run(part: Part) -> None:
    """Measure one after the other: two at once would measure each other."""
    longest = 0.0
    for model in ("BERT-large", "BERT-base", "MiniLM"):
        if part.seconds_left() < longest:
            part.note(f"There was no time for {model}.")
            continue
        started = time.monotonic()
        command = [sys.executable, "-m", "penstock.cli.main", "check", "--measure", "encoding_services:ids"]
        env = {**os.environ, "GPU_MODEL": model, "COLUMNS": "200", "NO_COLOR": "1"}
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=part.seconds_left() - 1, check=False
            )
        except subprocess.TimeoutExpired:
            part.note(f"There was no time for {model}: the check was ended after {time.monotonic() - started:.0f} s.")
            continue
        print(f"{model}:\n{done.stdout}{done.stderr}", flush=True)
        words = f"status {done.returncode}: {done.stderr.strip().rpartition(chr(10))[2]}" if done.returncode else ""
        part.check(f"{model}: nothing is wrong", not done.returncode, words)
        found = LINE.search(done.stdout)
        part.check(f"{model}: a size to copy", found is not None, found[0] if found else done.stdout[-300:])
        rates = {int(size): float(rate) for size, rate in RATE.findall(done.stdout)}
        if found and rates:
            size = int(found[1])
            part.figure(f"{model}: recommended", "items", size)
            part.figure(f"{model}: at that size", "items/s", rates[size])
            part.figure(f"{model}: at most", "items/s", max(rates.values()))
        memory = dict(MEMORY.findall(done.stdout))
        part.check(f"{model}: memory is told", len(memory) == 2, ", ".join(f"{k} {v}" for k, v in memory.items()))
        part.figure(f"{model}: weights in fp16, about", "MB", shape_of(model, small=not part.on_gpu).weights * 2 / 1e6)
        longest = max(longest, time.monotonic() - started)
