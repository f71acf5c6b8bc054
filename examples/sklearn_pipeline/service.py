"""A scikit-learn pipeline behind HTTP: the measures of an iris in, its species out."""

from typing import Annotated

from msgspec import Meta, Struct

import penstock as ps

Centimetres = Annotated[float, Meta(gt=0, le=100)]


class Flower(Struct):
    sepal_length: Centimetres
    sepal_width: Centimetres
    petal_length: Centimetres
    petal_width: Centimetres


class Species(Struct):
    name: str
    probability: float


class Classify(ps.Stage):
    batch = ps.Batch(max_size=256)
    examples = [Flower(5.1, 3.5, 1.4, 0.2)]

    def setup(self) -> None:
        # Trained here so that the example is whole; with a model of yours this is `joblib.load(path)`.
        from sklearn.datasets import load_iris
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        iris = load_iris()
        self.names = [str(name) for name in iris.target_names]
        self.model = make_pipeline(StandardScaler(), LogisticRegression()).fit(iris.data, iris.target)

    def predict(self, flowers: list[Flower]) -> list[Species]:
        rows = [[f.sepal_length, f.sepal_width, f.petal_length, f.petal_width] for f in flowers]
        chances = self.model.predict_proba(rows)
        return [Species(self.names[row.argmax()], float(row.max())) for row in chances]


service = ps.Service(ps.stage(Classify), name="iris")

if __name__ == "__main__":
    service.serve()
