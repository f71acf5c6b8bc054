import re
import sys

import numpy as np
import pytest

pytest.importorskip("skl2onnx")
pandas = pytest.importorskip("pandas")

from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin  # noqa: E402
from sklearn.calibration import CalibratedClassifierCV  # noqa: E402
from sklearn.cluster import KMeans  # noqa: E402
from sklearn.compose import ColumnTransformer  # noqa: E402
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis  # noqa: E402
from sklearn.ensemble import (  # noqa: E402
    BaggingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: E402
from sklearn.feature_selection import SelectKBest  # noqa: E402
from sklearn.impute import KNNImputer, SimpleImputer  # noqa: E402
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier  # noqa: E402
from sklearn.model_selection import GridSearchCV, TunedThresholdClassifierCV  # noqa: E402
from sklearn.multiclass import OneVsRestClassifier  # noqa: E402
from sklearn.multioutput import MultiOutputClassifier  # noqa: E402
from sklearn.neighbors import KNeighborsClassifier  # noqa: E402
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline  # noqa: E402
from sklearn.preprocessing import (  # noqa: E402
    FunctionTransformer,
    KBinsDiscretizer,
    OneHotEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    StandardScaler,
)
from sklearn.svm import SVC, LinearSVC  # noqa: E402
from sklearn.tree import DecisionTreeClassifier  # noqa: E402

import penstock as ps  # noqa: E402
from penstock import features as f  # noqa: E402
from penstock.artifact.opened_artifact import open_artifact  # noqa: E402
from penstock.errors import ConfigError, ExportRefused  # noqa: E402
from penstock.export import sklearn_conversion  # noqa: E402
from penstock.export.exporter import GraphSignature  # noqa: E402
from penstock.export.naming import describe_outputs, name_outputs  # noqa: E402
from penstock.export.sklearn_model import sklearn_exporter  # noqa: E402
from penstock.graphs.onnx_graph import OnnxGraph  # noqa: E402

RANDOM = np.random.default_rng(0)
ROWS = [
    {
        "age": float(age),
        "rate": float(rate),
        "kind": int(place % 5),
        "note": ("red house", "blue sea", "red sea")[place % 3],
    }
    for place, (age, rate) in enumerate(RANDOM.normal(size=(60, 2)))
]
MATRIX = ps.Features({"age": f.Numeric(), "rate": f.Numeric()}, concat_into="x").fit(ROWS)
COLUMNS = ps.Features({"age": f.Numeric(), "kind": f.Ids(), "note": f.Text()}).fit(ROWS)
TEXT = ps.Features({"note": f.Text()})
ONE = ps.Features({"age": f.Numeric()})
X = MATRIX.encode(ROWS)["x"]
POSITIVE = X[:, 0] > 0
NAMES = np.array(["no", "yes"])[POSITIVE.astype(int)]
BOTH, LABEL = ("label", "probabilities"), ("label",)


def of_columns():
    """A pipeline over a DataFrame of the inputs, that vectorizes text by itself."""
    columns = ColumnTransformer(
        [("note", TfidfVectorizer(), "note"), ("age", StandardScaler(), ["age"]), ("kind", OneHotEncoder(), ["kind"])]
    )
    frame = pandas.DataFrame(COLUMNS.encode(ROWS))
    return make_pipeline(columns, LogisticRegression()).fit(frame, NAMES)


def of_text():
    return make_pipeline(TfidfVectorizer(), LogisticRegression()).fit([row["note"] for row in ROWS], POSITIVE)


MODELS = {
    "labels of text": (MATRIX, lambda: make_pipeline(StandardScaler(), LogisticRegression()).fit(X, NAMES), BOTH),
    "labels of int": (MATRIX, lambda: RandomForestClassifier(5, random_state=0).fit(X, POSITIVE.astype(int)), BOTH),
    "labels of int32": (MATRIX, lambda: LogisticRegression().fit(X, POSITIVE.astype("int32")), BOTH),
    "labels of bool": (MATRIX, lambda: LogisticRegression().fit(X, POSITIVE), BOTH),
    "three classes": (MATRIX, lambda: LogisticRegression().fit(X, np.arange(60) % 3), BOTH),
    "no probabilities": (MATRIX, lambda: LinearSVC().fit(X, NAMES), LABEL),
    "no probabilities, sgd": (MATRIX, lambda: SGDClassifier(random_state=0).fit(X, POSITIVE), LABEL),
    "a name that the graph has": (MATRIX, lambda: SVC().fit(X, POSITIVE.astype(int)), LABEL),
    "one number": (MATRIX, lambda: LinearRegression().fit(X, X @ [1.0, 2.0]), ("output",)),
    "two numbers": (MATRIX, lambda: LinearRegression().fit(X, X), ("output",)),
    "trees": (MATRIX, lambda: RandomForestRegressor(5, random_state=0).fit(X, X[:, 0]), ("output",)),
    "boosting of classes": (MATRIX, lambda: HistGradientBoostingClassifier(max_iter=5).fit(X, NAMES), BOTH),
    "boosting of numbers": (MATRIX, lambda: HistGradientBoostingRegressor(max_iter=5).fit(X, X[:, 0]), ("output",)),
    "a soft vote": (
        MATRIX,
        lambda: VotingClassifier(
            [("linear", LogisticRegression()), ("none", "drop"), ("trees", RandomForestClassifier(3, random_state=0))],
            voting="soft",
            weights=[1, 7, 2],
        ).fit(X, NAMES),
        BOTH,
    ),
    "a vote of numbers": (
        MATRIX,
        lambda: make_pipeline(
            StandardScaler(), VotingRegressor([("a", LinearRegression()), ("b", LinearRegression())], weights=[1, 2])
        ).fit(X, X[:, 0]),
        ("output",),
    ),
    "a transformer": (MATRIX, lambda: StandardScaler().fit(X), ("output",)),
    "clusters": (MATRIX, lambda: KMeans(3, n_init=1, random_state=0).fit(X), ("output",)),
    "a dataframe": (COLUMNS, of_columns, BOTH),
    "text alone": (TEXT, of_text, BOTH),
    "one column": (ONE, lambda: LinearRegression().fit(X[:, :1], X[:, 1]), ("output",)),
}


def exported(model, features, folder):
    """What the model answered by name, and the graph of it that was written."""
    exporter = sklearn_exporter(model)
    exporter.check_inputs(features.inputs)
    inputs = features.encode(ROWS)
    answer = exporter.answer(inputs)
    names = name_outputs(answer, None)
    described = describe_outputs(names, answer.arrays, len(ROWS))
    written = exporter.write("onnx", folder, GraphSignature(features.inputs, described, inputs))
    graph = OnnxGraph((folder / written).read_bytes(), inputs=features.inputs, outputs=described, threads=1)
    return dict(zip(names, answer.arrays, strict=True)), graph


@pytest.mark.parametrize("kind", MODELS)
def test_a_graph_answers_as_the_model_in_its_shapes_and_dtypes(tmp_path, kind, capfd):
    features, make, names = MODELS[kind]
    model = make()
    capfd.readouterr()
    answered, graph = exported(model, features, tmp_path)
    assert tuple(answered) == names
    for rows in (1, 3, 60):
        for (name, expected), array in zip(answered.items(), graph.run(features.encode(ROWS[:rows])), strict=True):
            assert array.dtype == expected.dtype, name
            if array.dtype.kind == "f":
                np.testing.assert_allclose(array, expected[:rows], rtol=1e-5, atol=1e-5)
            else:
                assert array.tolist() == expected[:rows].tolist()
    written = capfd.readouterr()
    assert (written.out, written.err) == ("", "")


BOOSTED = {
    "numbers": lambda x, y: HistGradientBoostingRegressor(max_iter=5, min_samples_leaf=1).fit(x, y),
    "two classes": lambda x, y: HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=1).fit(x, y > 2),
    "five classes": lambda x, y: HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=1).fit(x, y),
}


@pytest.mark.parametrize("kind", BOOSTED)
def test_a_threshold_between_neighbours_in_float32_parts_them_in_the_graph_too(tmp_path, kind):
    rows = [{"age": 8388608.0 + place % 40} for place in range(200)]  # there is no float32 between these numbers
    x = ONE.encode(rows)["age"].reshape(-1, 1)
    model = BOOSTED[kind](x, np.arange(200) % 40 * 7 % 5)
    report = ps.export.save(model, tmp_path / "model", features=ONE, reference_rows=rows[:1], validation_data=rows)
    assert report.rows == 201


UNLIKE = {
    "a threshold": (lambda: TunedThresholdClassifierCV(LogisticRegression()), "skl2onnx ignores the threshold"),
    "a calibration": (
        lambda: CalibratedClassifierCV(LogisticRegression(), method="isotonic", cv=2),
        "use method='sigmoid'",
    ),
    "a hard vote": (
        lambda: make_pipeline(
            StandardScaler(), VotingClassifier([("linear", LogisticRegression()), ("svc", LinearSVC())])
        ),
        r"^step 'votingclassifier' \(VotingClassifier\) cannot be converted to ONNX: with voting='hard' .*'soft'",
    ),
    "a step that does nothing": (
        lambda: Pipeline([("idle", "passthrough"), ("model", LogisticRegression())]),
        "does not support a step that passes everything through, such as 'idle'; remove it",
    ),
    "bins that are sparse": (
        lambda: make_pipeline(KBinsDiscretizer(3, quantile_method="averaged_inverted_cdf"), LogisticRegression()),
        r"^step 'kbinsdiscretizer' \(KBinsDiscretizer\) cannot be .* a sparse matrix; use encode='onehot-dense'",
    ),
    "one in a pipeline in a search": (
        lambda: GridSearchCV(
            make_pipeline(StandardScaler(), CalibratedClassifierCV(LogisticRegression(), method="isotonic", cv=2)),
            {"standardscaler__with_mean": [True]},
            cv=2,
        ),
        "use method='sigmoid'",
    ),
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_what_skl2onnx_converts_to_something_else_is_refused_whatever_the_probes_are(tmp_path, kind):
    make, reason = UNLIKE[kind]
    with pytest.raises(ExportRefused, match=reason):
        exported(make().fit(X, POSITIVE), MATRIX, tmp_path)
    assert list(tmp_path.iterdir()) == []


def of_empty_column(imputer):
    """A pipeline that was fitted with a first column that is always missing."""
    x = X.copy()
    x[:, 0] = -1
    steps = ColumnTransformer([("known", imputer, [0, 1])])
    return make_pipeline(steps, DecisionTreeClassifier(max_depth=2)).fit(x, POSITIVE)


@pytest.mark.parametrize(
    ("imputer", "remedy"),
    [
        (SimpleImputer(missing_values=-1.0), "remove the column, or set keep_empty_features=True"),
        (SimpleImputer(missing_values=-1.0, strategy="constant", add_indicator=True), "remove the column, or set"),
        (KNNImputer(missing_values=-1.0), "remove the column$"),
        (KNNImputer(missing_values=-1.0, keep_empty_features=True), "remove the column$"),
    ],
)
@pytest.mark.filterwarnings("ignore:Skipping features")
def test_an_imputer_of_a_column_that_was_always_missing_is_refused_by_its_name(tmp_path, imputer, remedy):
    told = r"^step 'columntransformer.known' \((Simple|KNN)Imputer\) cannot be .*: one of its columns had only missing "
    with pytest.raises(ExportRefused, match=rf"{told}.*; {remedy}"):
        exported(of_empty_column(imputer), MATRIX, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("indicator", [False, True])
def test_an_imputer_that_makes_zeros_of_a_column_that_was_always_missing_is_exported(tmp_path, indicator):
    imputer = SimpleImputer(missing_values=-1.0, keep_empty_features=True, add_indicator=indicator)
    answered, graph = exported(of_empty_column(imputer), MATRIX, tmp_path)
    labels, _ = graph.run(MATRIX.encode(ROWS))
    assert labels.tolist() == answered["label"].tolist()


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: make_pipeline(StandardScaler(), model)])
@pytest.mark.parametrize(
    "make", [lambda: SGDClassifier(loss="log_loss"), lambda: OneVsRestClassifier(LogisticRegression())]
)
def test_labels_by_decision_values_are_refused_where_the_graph_has_them_by_probabilities(tmp_path, make, wrap):
    model = wrap(make()).fit(X, np.digitize(X[:, 0] + X[:, 1], [-0.5, 0.5]))
    with pytest.raises(ExportRefused, match="predicts the class of the greatest decision value"):
        exported(model, MATRIX, tmp_path)
    answered, _ = exported(wrap(make()).fit(X, POSITIVE), MATRIX, tmp_path)
    assert tuple(answered) == BOTH


COLUMN_NAMES = ["age", "rate of/é", "kind"]
FRAMED = {
    "a regression": LinearRegression,
    "trees": lambda: RandomForestRegressor(3, random_state=0),
    "SVC": SVC,
    "LinearSVC": LinearSVC,
    "QDA": QuadraticDiscriminantAnalysis,
    "polynomials": PolynomialFeatures,
    "bins": lambda: KBinsDiscretizer(3, encode="ordinal", quantile_method="averaged_inverted_cdf"),
    "powers": PowerTransformer,
    "quantiles": lambda: QuantileTransformer(n_quantiles=20),
    "a selection": lambda: make_pipeline(SelectKBest(k=2), LogisticRegression()),
    "the first column": lambda: make_pipeline(SelectKBest(k=1), LogisticRegression()),
    "polynomials in a pipeline": lambda: make_pipeline(PolynomialFeatures(), LogisticRegression()),
    "LinearSVC in a pipeline": lambda: make_pipeline(StandardScaler(), LinearSVC()),
    "a search": lambda: GridSearchCV(SVC(), {"C": [1.0]}, cv=2),
    "a search for a regression": lambda: GridSearchCV(LinearRegression(), {"fit_intercept": [True]}, cv=2),
    "a search for trees": lambda: GridSearchCV(RandomForestRegressor(3, random_state=0), {"max_depth": [3]}, cv=2),
    "a search for a search": lambda: GridSearchCV(
        GridSearchCV(LogisticRegression(), {"C": [1.0]}, cv=2), {"refit": [True]}, cv=2
    ),
    "a vote of a search": lambda: VotingRegressor(
        [("found", GridSearchCV(LinearRegression(), {"fit_intercept": [True]}, cv=2)), ("plain", LinearRegression())]
    ),
    "a union": lambda: FeatureUnion([("polynomials", PolynomialFeatures()), ("scaled", StandardScaler())]),
    "a vote, of which one asks for names": lambda: VotingClassifier(
        [
            ("named", make_pipeline(ColumnTransformer([("age", "passthrough", ["age"])]), LogisticRegression())),
            ("all", make_pipeline(PolynomialFeatures(), LogisticRegression())),
        ],
        voting="soft",
    ),
    "each column by itself": lambda: make_pipeline(
        ColumnTransformer([("kind", OneHotEncoder(), ["kind"])], remainder="passthrough"), SVC()
    ),
}


@pytest.mark.parametrize("kind", FRAMED)
def test_what_was_fitted_on_a_frame_of_several_columns_takes_them_together(tmp_path, kind):
    columns = ps.Features({"rate of/é": f.Numeric(column="rate"), "kind": f.Ids(), "age": f.Numeric()}).fit(ROWS)
    frame = pandas.DataFrame(columns.encode(ROWS))[COLUMN_NAMES]
    answered, graph = exported(FRAMED[kind]().fit(frame, POSITIVE), columns, tmp_path)
    for expected, array in zip(answered.values(), graph.run(columns.encode(ROWS)), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-5)


def test_an_estimator_that_was_fitted_on_a_frame_of_several_columns_is_saved(tmp_path):
    columns = ps.Features({"rate of/é": f.Numeric(column="rate"), "kind": f.Ids(), "age": f.Numeric()}).fit(ROWS)
    frame = pandas.DataFrame(columns.encode(ROWS))[COLUMN_NAMES]
    ps.export.save(
        SVC().fit(frame, POSITIVE), tmp_path / "model", features=columns, reference_rows=ROWS[:3], validation_data=ROWS
    )


def test_what_does_not_convert_in_a_frame_is_refused_by_the_first_error(tmp_path):
    rare = OneHotEncoder(min_frequency=13, handle_unknown="infrequent_if_exist")
    columns = ps.Features({"rate": f.Numeric(), "kind": f.Ids()}).fit(ROWS)
    frame = pandas.DataFrame(columns.encode(ROWS))
    model = make_pipeline(ColumnTransformer([("rare", rare, ["kind"])]), LogisticRegression()).fit(frame, POSITIVE)
    with pytest.raises(ExportRefused, match=r"^step 'columntransformer.rare' .* Infrequent categories are not impl"):
        exported(model, columns, tmp_path)


def test_an_error_of_the_runtime_names_the_step(tmp_path, monkeypatch):
    monkeypatch.setattr(sklearn_conversion, "_joined_type", lambda operator: None)
    frame = pandas.DataFrame(X, columns=["age", "rate"])
    model = make_pipeline(PolynomialFeatures(), LogisticRegression()).fit(frame, POSITIVE)
    apart = ps.Features({"age": f.Numeric(), "rate": f.Numeric()}).fit(ROWS)
    _, graph = exported(model, apart, tmp_path)
    with pytest.raises(Exception, match="Name:'polynomialfeatures/ArrayFeatureExtractor"):
        graph.run(apart.encode(ROWS))


def test_only_what_a_search_has_chosen_counts(tmp_path):
    votes = VotingClassifier([("linear", LogisticRegression()), ("trees", RandomForestClassifier(3, random_state=0))])
    model = GridSearchCV(votes, {"voting": ["soft"]}, cv=2).fit(X, POSITIVE)
    answered, _ = exported(model, MATRIX, tmp_path)
    assert tuple(answered) == BOTH


def test_the_classes_are_the_model_s_own_and_stand_in_the_manifest(tmp_path):
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, NAMES)
    report = ps.export.save(
        model, tmp_path / "model", features=MATRIX, reference_rows=ROWS[:3], validation_data=ROWS, classes=["no", "yes"]
    )
    assert (report.rows, report.max_difference["label"]) == (63, 0.0)
    artifact = open_artifact(report.path)
    assert artifact.manifest.classes == ("no", "yes")
    assert {"scikit-learn", "skl2onnx", "onnx", "numpy", "python", "penstock"} == set(artifact.manifest.libraries)


def test_other_classes_than_the_model_s_are_refused(tmp_path):
    model = LogisticRegression().fit(X, NAMES)
    with pytest.raises(
        ConfigError, match=r"classes=\['yes', 'no'\], but the model was fitted with the classes \['no', 'yes'\]"
    ):
        ps.export.save(model, tmp_path / "model", features=MATRIX, reference_rows=ROWS[:3], classes=["yes", "no"])
    assert list(tmp_path.iterdir()) == []


def test_words_are_split_as_scikit_learn_splits_them_in_any_language(tmp_path):
    texts = [
        "École été",
        "STRASSE straße 12 x",
        "Привет мир",
        "naïve na ve",
        "東京 都庁",
        "red-sea it's a_b",
        "nai\u0308ve \uff13\uff14",
    ]
    rows = [{"note": text} for text in texts * 3]
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts * 3, np.arange(21) % 3)
    report = ps.export.save(model, tmp_path / "model", features=TEXT, reference_rows=rows)
    assert report.max_difference["probabilities"] < 1e-5


class Own(TransformerMixin, BaseEstimator):
    def fit(self, X, y=None):
        self.fitted_ = True
        return self

    def transform(self, X):
        return X


class OwnClassifier(ClassifierMixin, BaseEstimator):
    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        return np.stack([X[:, 0] <= 0, X[:, 0] > 0], axis=1).astype(float)

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


MEMBERS = [("linear", LogisticRegression()), ("own", OwnClassifier())]
NO_CONVERTER = "skl2onnx has no converter for its class; use one of another class instead"
REFUSED = {
    "a step": ([StandardScaler(), Own()], f"step 'own' (Own) cannot be converted to ONNX: {NO_CONVERTER}"),
    "a function": (
        [FunctionTransformer(np.abs)],
        "step 'functiontransformer' (FunctionTransformer) cannot be converted",
    ),
    "of columns": (
        [ColumnTransformer([("first", Own(), [0])])],
        "step 'columntransformer.first' (Own) cannot be converted",
    ),
    "the other columns": (
        [ColumnTransformer([("first", StandardScaler(), [0])], remainder=make_pipeline(Own()))],
        "step 'columntransformer.remainder.own' (Own) cannot be converted",
    ),
    "of a union": (
        [FeatureUnion([("a", StandardScaler()), ("b", Own())])],
        "step 'featureunion.b' (Own) cannot be converted",
    ),
    "three pipelines deep": (
        [make_pipeline(make_pipeline(Own()))],
        "step 'pipeline.pipeline.own' (Own) cannot be converted",
    ),
    "a member of a vote": (
        [StandardScaler(), VotingClassifier(MEMBERS, voting="soft")],
        f"step 'votingclassifier.own' (OwnClassifier) cannot be converted to ONNX: {NO_CONVERTER}",
    ),
    "a member of a stack": (
        [StandardScaler(), StackingClassifier(MEMBERS, cv=2)],
        f"step 'stackingclassifier.own' (OwnClassifier) cannot be converted to ONNX: {NO_CONVERTER}",
    ),
    "of a calibration": (
        [CalibratedClassifierCV(OwnClassifier(), cv=2)],
        f"step 'calibratedclassifiercv.estimator' (OwnClassifier) cannot be converted to ONNX: {NO_CONVERTER}",
    ),
    "of bags": (
        [BaggingClassifier(OwnClassifier(), 2)],
        f"step 'baggingclassifier.estimator' (OwnClassifier) cannot be converted to ONNX: {NO_CONVERTER}",
    ),
    "an option, which names no class": (
        [StandardScaler(), KNeighborsClassifier(3, metric="canberra")],
        "step 'kneighborsclassifier' (KNeighborsClassifier) cannot be converted to ONNX: metric='canberra' is not",
    ),
    "an option of a transformer": (
        [ColumnTransformer([("spread", QuantileTransformer(n_quantiles=20, output_distribution="normal"), [0])])],
        "step 'columntransformer.spread' (QuantileTransformer) cannot be converted to ONNX: Conversion of Quantile",
    ),
    "in a search": (
        [GridSearchCV(make_pipeline(Own(), LogisticRegression()), {"logisticregression__C": [1.0]}, cv=2)],
        "step 'gridsearchcv.best_estimator_.own' (Own) cannot be converted",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_does_not_convert_is_refused_by_the_name_of_its_step(tmp_path, kind):
    steps, named = REFUSED[kind]
    last = [] if hasattr(steps[-1], "predict") else [LogisticRegression()]
    model = make_pipeline(*steps, *last).fit(X, POSITIVE)
    with pytest.raises(ExportRefused, match=re.escape(named)) as caught:
        exported(model, MATRIX, tmp_path)
    assert caught.value.format == "onnx"
    assert list(tmp_path.iterdir()) == []


TREES = RandomForestRegressor(3, random_state=0)
FOREST = RandomForestClassifier(3, random_state=0)
DOUBTS = {
    "trees alone": (TREES, False),
    "a scaler": (make_pipeline(StandardScaler(), TREES), True),
    "a scaler of one column": (
        make_pipeline(ColumnTransformer([("a", StandardScaler(), [0]), ("b", "passthrough", [1])]), TREES),
        True,
    ),
    "a scaler, boosting": (make_pipeline(StandardScaler(), HistGradientBoostingRegressor(max_iter=2)), True),
    "a scaler, bags of trees": (make_pipeline(StandardScaler(), BaggingClassifier(n_estimators=2)), True),
    "a scaler in a search": (GridSearchCV(make_pipeline(StandardScaler(), TREES), {}, cv=2), True),
    "columns as they are": (make_pipeline(ColumnTransformer([("a", "passthrough", [0])]), TREES), False),
    "one hot": (make_pipeline(OneHotEncoder(), TREES), False),
    "a scaler for others": (
        VotingClassifier([("a", make_pipeline(StandardScaler(), LogisticRegression())), ("b", FOREST)], voting="soft"),
        False,
    ),
    "trees under a stack": (StackingClassifier([("trees", FOREST)], cv=2), False),
    "trees upon a stack": (StackingClassifier([("a", LogisticRegression())], FOREST, cv=2), True),
    "no trees": (make_pipeline(StandardScaler(), LinearRegression()), False),
}


@pytest.mark.parametrize("kind", DOUBTS)
def test_trees_behind_steps_that_compute_are_doubted(kind):
    model, doubted = DOUBTS[kind]
    rows = X.round() if kind == "one hot" else X
    exporter = sklearn_exporter(model.fit(rows, POSITIVE.astype(int)))
    assert ("another branch" in exporter.doubt) is doubted


def test_few_rows_for_trees_behind_a_scaler_are_told(tmp_path, capsys):
    model = make_pipeline(StandardScaler(), RandomForestRegressor(3, random_state=0)).fit(X, X[:, 0])
    ps.export.save(model, tmp_path / "model", features=MATRIX, reference_rows=ROWS[:2])
    assert (
        "2 rows are compared, which is few for this model: trees use values computed by steps"
        in capsys.readouterr().err
    )


def test_a_model_that_is_not_fitted_is_refused():
    with pytest.raises(ConfigError, match="the LogisticRegression is not fitted"):
        sklearn_exporter(LogisticRegression())


def test_a_classifier_of_several_things_is_refused():
    model = MultiOutputClassifier(LogisticRegression()).fit(X, np.stack([POSITIVE, ~POSITIVE], axis=1))
    with pytest.raises(ConfigError, match="predicts 2 targets"):
        sklearn_exporter(model)


def test_inputs_that_the_model_was_not_fitted_on_are_refused():
    of_array = sklearn_exporter(LinearRegression().fit(X, X))
    with pytest.raises(ConfigError, match=r"the inputs age, kind, note, but the model was fitted on an array"):
        of_array.check_inputs(COLUMNS.inputs)
    of_frame = sklearn_exporter(of_columns())
    with pytest.raises(ConfigError, match=r"the columns note, age, kind|the columns age, kind, note"):
        of_frame.check_inputs(MATRIX.inputs)
    frame = pandas.DataFrame({"x": X[:, 0]})
    with pytest.raises(ConfigError, match=r"input 'x' has \[2\] values a row"):
        sklearn_exporter(LinearRegression().fit(frame, X)).check_inputs(MATRIX.inputs)


def test_a_matrix_of_another_width_is_told_with_scikit_learn_s_words():
    exporter = sklearn_exporter(LinearRegression().fit(np.zeros((3, 5), np.float32), np.zeros(3)))
    with pytest.raises(ConfigError, match=r"LinearRegression.predict raised ValueError: X has 2 features"):
        exporter.answer(MATRIX.encode(ROWS))


class WithoutProbabilities(LogisticRegression):
    def predict_proba(self, X):
        raise RuntimeError("none today")


def test_the_method_that_raises_is_the_one_that_is_told():
    exporter = sklearn_exporter(WithoutProbabilities().fit(X, POSITIVE))
    with pytest.raises(ConfigError, match=r"WithoutProbabilities.predict_proba raised RuntimeError: none today"):
        exporter.answer(MATRIX.encode(ROWS))


def test_without_skl2onnx_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "skl2onnx", None)  # as if it were not there, where it is
    with pytest.raises(ConfigError, match=r"skl2onnx.*pip install 'penstock\[sklearn\]'"):
        exported(LinearRegression().fit(X, X), MATRIX, tmp_path)
    assert list(tmp_path.iterdir()) == []
