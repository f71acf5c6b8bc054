"""The TypeScript client is built, and does what the vectors say: `npm ci && npm run build && npm test`."""

from __future__ import annotations

import json
import re

import pytest

from typescript_package import MISSING, build_package, has_node, run_npm, try_program

pytestmark = [
    pytest.mark.night,  # it installs packages of npm
    pytest.mark.skipif(not has_node(), reason=MISSING),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return build_package(tmp_path_factory.mktemp("typescript"))


def test_it_passes_its_tests_and_all_vectors(package):
    run_npm(package, "test")


def test_a_vector_that_says_something_else_fails(package):
    """So the runner compares."""
    run_npm(package, "run", "pretest")
    path = package.parent / "vectors" / "statuses.json"
    plain = path.read_text()
    page = json.loads(plain)
    vector = page["vectors"][0]
    vector["calls"][0]["ends"] += 1
    only = f"--test-name-pattern=^{re.escape(vector['name'])}$"
    try:
        path.write_text(json.dumps(page))
        done = try_program(package, "node", "--test", only, "build/test/vectors.test.js")
    finally:
        path.write_text(plain)
    assert done.returncode == 1
    assert "ends at 0, not 1" in done.stdout
