"""The survey that the trainers share: what they train on, and every fifth row, which they never see."""

import pandas as pd
from statsmodels.datasets import fair


def survey() -> tuple[pd.DataFrame, pd.DataFrame]:
    """5 092 rows to train on and 1 274 held out; `affair` is 1 for those who had one.

    The survey is complete, and what a server is sent never is.  So every 7th age, every 11th year of schooling and
    every 13th occupation is taken away, the same ones in each run.
    """
    rows = fair.load_pandas().data
    rows["affair"] = (rows.pop("affairs") > 0).astype("float32")
    for column, every in {"age": 7, "educ": 11, "occupation": 13}.items():
        rows[column] = rows[column].mask(rows.index % every == every - 1)
    held_out = rows.index % 5 == 0
    return rows[~held_out], rows[held_out]
