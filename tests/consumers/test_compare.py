import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))

from compare import PAGE, claimed, judged

EXPECTED = np.array([[0.25], [-3.0]])


def test_the_page_has_a_row_for_each_consumer_and_signature_in_words_that_can_be_compared():
    names, cells = claimed(PAGE.read_text())
    assert {len(row) for row in cells.values()} == {len(names)}


@pytest.mark.parametrize(
    ("answer", "expected", "seen"),
    [
        ([[0.25], [-3.00002]], EXPECTED, "yes"),
        ([[0.25], [-3.00005]], EXPECTED, "no: other numbers"),
        ([[0.25], [None]], EXPECTED, "no: other numbers"),  # what JSON makes of NaN
        ([0.25, -3.0], EXPECTED, "fails"),
        ("error: 'tf.IsNan' op is neither a custom op nor a flex op", EXPECTED, "no: unsupported op"),
        ("status -11: ", EXPECTED, "fails"),
        ("assertion failed: [user: an id is not between 0 and 3]", EXPECTED, "fails"),
        ("assertion failed: [user: an id is not between 0 and 3]", None, "yes"),
        ("status -11: ", None, "fails"),
        ([[0.25]], None, "no: answered"),
    ],
)
def test_a_cell_is_what_an_answer_shows(answer, expected, seen):
    assert judged(answer, expected)[0] == seen
