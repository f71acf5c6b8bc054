"""Embed each text of a folder: `python embed.py TEXTS RESULTS`.  Killed and started again, it goes on where it was."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

from rich.progress import Progress

from penstock import jobs


def describe(text: Path, results: Path) -> dict[str, str]:
    """The job of a text.  Its key is the file's name: what was submitted before is not submitted again."""
    return {
        "input_url": text.as_uri(),
        "content_type": "application/octet-stream",
        "output_url": (results / f"{text.name}.npy").as_uri(),
        "accept": "application/x-npy",
        "key": text.name,
    }


def show(queue: jobs.JobQueue, worker: subprocess.Popen[bytes]) -> None:
    """A progress bar, or a line for each change where nobody watches, until the consumer has ended."""
    with Progress(disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task("embedding")
        ended, shown = False, ""
        while not ended:
            ended = worker.poll() is not None  # asked before the queue is: the last look sees the end
            found = queue.stats()
            done = found.succeeded + found.dead
            total = done + found.queued + found.running + found.scheduled
            bar.update(task, completed=done, total=total)
            line = f"{done} of {total} texts, {found.dead} failed"
            if bar.disable and line != shown:
                print(shown := line, flush=True)
            time.sleep(0.2)


def main(texts: Path, results: Path) -> int | str:
    results.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:///{quote(str(results / 'queue.db'))}"
    command = [sys.executable, "-m", "penstock", "consume", "service:service", "--queue-url", url, "--until-empty"]
    allowed = ["--allow-input", texts.as_uri(), "--allow-output", results.as_uri(), "--lease", "5"]
    with jobs.connect(url) as queue, (results / "work.log").open("ab") as log:
        queue.submit_many(describe(text, results) for text in sorted(texts.glob("*.txt")))
        worker = subprocess.Popen([*command, *allowed], cwd=Path(__file__).parent, stderr=log)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the consumer hears Ctrl-C: it ends what it has begun, and stops
        show(queue, worker)
        for job in (dead := queue.list(state="dead")):
            print(f"{job.input_url}: {job.error.message if job.error else ''}")
    return f"the consumer has failed: see {log.name}" if worker.returncode else min(1, len(dead))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()))
