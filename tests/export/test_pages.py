"""The pages whose programs need a framework are held to what they say, as `tests/test_docs.py` holds the others."""

from __future__ import annotations

import test_docs

LIMIT = 150.0
"""Seconds that a program may take: one imports a framework, trains, exports, and proves in a process of its own."""


@test_docs.each([page for page in test_docs.TO_BE_DONE if test_docs.needs_frameworks(page)])
def test_a_reader_with_a_framework_gets_what_a_page_says(page, tmp_path):
    test_docs.read(page, tmp_path, LIMIT)
