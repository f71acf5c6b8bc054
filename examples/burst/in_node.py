"""The burst for the front in Node of `examples/node_front`, which must be built: it runs the same service in Python."""

import os
import sys
from pathlib import Path

from burst import WANTED, run

FRONT = "../node_front/dist/src/main.js"

if __name__ == "__main__":
    os.environ |= {"PORT": "0", "SERVICE_FOLDER": ".", "PENSTOCK": str(Path(sys.executable).parent / "penstock")}
    ended = run("In Node", FRONT, program=("node",))
    print(ended)
    sys.exit(ended != WANTED)
