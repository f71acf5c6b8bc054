"""Texts in, vectors out: texts that share many runs of letters have vectors that point the same way."""

import numpy as np
from numpy.typing import NDArray

import penstock as ps


class Embed(ps.Stage):
    """Hashes runs of 3 to 5 letters into 256 numbers.  It stands for a model of yours, which is slower."""

    batch = ps.Batch(max_size=16)
    examples = [b"The gate lets the water in."]

    def setup(self) -> None:
        from sklearn.feature_extraction.text import HashingVectorizer

        self.model = HashingVectorizer(analyzer="char_wb", ngram_range=(3, 5), n_features=256, dtype=np.float32)

    def preprocess(self, text: bytes) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise ps.InvalidItem(f"the text is not UTF-8: {error}") from None

    def predict(self, texts: list[str]) -> NDArray[np.float32]:
        return self.model.transform(texts).toarray()


service = ps.Service(ps.stage(Embed), name="embeddings")
