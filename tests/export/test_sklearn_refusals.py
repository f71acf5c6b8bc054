"""What a model of scikit-learn refuses, its graph refuses: pipelines over odd rows, as a client writes them."""

import itertools
import json
import math
import types

import msgspec
import numpy as np
import pytest

pytest.importorskip("skl2onnx")
pandas = pytest.importorskip("pandas")

from sklearn.compose import ColumnTransformer  # noqa: E402
from sklearn.decomposition import PCA  # noqa: E402
from sklearn.ensemble import RandomForestRegressor  # noqa: E402
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer  # noqa: E402
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.linear_model import LinearRegression, LogisticRegression  # noqa: E402
from sklearn.naive_bayes import CategoricalNB, ComplementNB, GaussianNB, MultinomialNB  # noqa: E402
from sklearn.neighbors import KNeighborsRegressor  # noqa: E402
from sklearn.pipeline import FeatureUnion, make_pipeline  # noqa: E402
from sklearn.preprocessing import (  # noqa: E402
    KBinsDiscretizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import SVC, LinearSVC  # noqa: E402
from sklearn.tree import DecisionTreeClassifier  # noqa: E402

import penstock as ps  # noqa: E402
from penstock import features as f  # noqa: E402
from penstock.artifact.served_model import ServedModel  # noqa: E402
from penstock.errors import ConfigError, ExportRefused  # noqa: E402
from penstock.export import sklearn_words  # noqa: E402
from penstock.export.artifact_stage import ArtifactStage  # noqa: E402
from penstock.export.exporter import GraphSignature  # noqa: E402
from penstock.export.made_rows import made_rows, rewritten_texts  # noqa: E402
from penstock.export.naming import describe_outputs, name_outputs  # noqa: E402
from penstock.export.sklearn_model import sklearn_exporter  # noqa: E402
from penstock.export.sklearn_refusals import RefusingNodes  # noqa: E402
from penstock.graphs.onnx_graph import OnnxGraph  # noqa: E402

NOTES = ("Red house", "blue sea", "Straße am Fluss", "οδος", "istanbul göl", "naïve café 12")
ROWS = [
    {
        "size": float(place % 7) + 1.0,
        "price": float(place % 11) + 0.5,
        "shop": place % 4,
        "town": ("rome", "bonn", "oslo")[place % 3],
        "note": NOTES[place % 6],
    }
    for place in range(66)
]
"""The feature `town` knows a value that is in no row, and has an id for all others."""
FEATURES = ps.Features(
    {
        "size": f.Numeric(),
        "price": f.Numeric(fill_value=-1.0),
        "shop": f.Ids(),
        "town": f.Vocabulary(["bonn", "oslo", "rome", "paris"]),
        "note": f.Text(fill_value=""),
    }
).fit(ROWS)
MATRIX = ps.Features({"size": f.Numeric(), "price": f.Numeric(fill_value=-1.0)}, concat_into="x").fit(ROWS)
TEXT = ps.Features({"note": f.Text(fill_value="")})
FRAME = pandas.DataFrame(FEATURES.encode(ROWS))
CLASSES = np.array([int(place % 7 + place % 3 > 4) for place in range(66)])


def of_columns(encoder, last, columns=("shop", "town")):
    """An encoder of some columns beside the numbers, and an estimator."""
    steps = ColumnTransformer([("kind", encoder, list(columns)), ("numbers", "passthrough", ["size", "price"])])
    return FEATURES, make_pipeline(steps, last)


def of_numbers(*steps):
    return MATRIX, make_pipeline(*steps)


def of_text(vectorizer, last):
    return FEATURES, make_pipeline(ColumnTransformer([("words", vectorizer, "note")]), last)


def bins():
    return KBinsDiscretizer(3, encode="ordinal", quantile_method="averaged_inverted_cdf")


ENCODERS = {
    "one hot": OneHotEncoder,
    "one hot, ignore": lambda: OneHotEncoder(handle_unknown="ignore"),
    "one hot, warn": lambda: OneHotEncoder(handle_unknown="warn"),
    "one hot, drop": lambda: OneHotEncoder(drop="first"),
    "ordinal": OrdinalEncoder,
    "ordinal, -1": lambda: OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    "target": lambda: TargetEncoder(cv=2),
    "imputed, one hot": lambda: make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()),
    "bins, ordinal": lambda: make_pipeline(bins(), OrdinalEncoder()),
}
LAST = {
    "linear": lambda: LogisticRegression(C=0.5),
    "trees": lambda: DecisionTreeClassifier(max_depth=3),
    "numbers": LinearRegression,
}
NUMBERS = {
    "nothing": lambda: (),
    "standard": lambda: (StandardScaler(),),
    "minmax": lambda: (MinMaxScaler(),),
    "robust": lambda: (RobustScaler(),),
    "polynomials": lambda: (PolynomialFeatures(2),),
    "cubes": lambda: (PolynomialFeatures(3), StandardScaler()),
    "bins": lambda: (bins(),),
    "powers": lambda: (PowerTransformer(),),
    "quantiles": lambda: (QuantileTransformer(n_quantiles=20),),
    "unit": lambda: (Normalizer(),),
    "components": lambda: (PCA(1),),
    "imputed": lambda: (SimpleImputer(missing_values=-1.0),),
    "a union": lambda: (FeatureUnion([("a", StandardScaler()), ("b", PolynomialFeatures(2))]),),
}
VECTORIZERS = {
    "counts": CountVectorizer,
    "tfidf": TfidfVectorizer,
    "counts, case kept": lambda: CountVectorizer(lowercase=False),
    "binary": lambda: CountVectorizer(binary=True),
    "pairs": lambda: CountVectorizer(ngram_range=(1, 2)),
    "sublinear": lambda: TfidfVectorizer(sublinear_tf=True, norm="l1"),
    "no accents": lambda: TfidfVectorizer(strip_accents="unicode"),
    "ascii": lambda: CountVectorizer(strip_accents="ascii", lowercase=False),
    "characters": lambda: CountVectorizer(analyzer="char", ngram_range=(2, 3)),
    "characters of words": lambda: TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4)),
    "stop words": lambda: CountVectorizer(stop_words=["am", "house"], ngram_range=(1, 2)),
    "own words": lambda: CountVectorizer(token_pattern=r"(?i)[^\W\d_]+|\d"),
}
PIPELINES = {
    **{
        f"{kind}, {last}": lambda kind=kind, last=last: of_columns(ENCODERS[kind](), LAST[last]())
        for kind in ENCODERS
        for last in LAST
    },
    **{
        f"{kind}, {last}": lambda kind=kind, last=last: of_numbers(*NUMBERS[kind](), LAST[last]())
        for kind in NUMBERS
        for last in ("linear", "numbers")
    },
    **{
        f"{kind}, {last}": lambda kind=kind, last=last: of_text(VECTORIZERS[kind](), LAST[last]())
        for kind in VECTORIZERS
        for last in ("linear", "numbers")
    },
    "SVC": lambda: of_numbers(StandardScaler(), SVC()),
    "LinearSVC": lambda: of_columns(OneHotEncoder(), LinearSVC()),
    "Gaussian": lambda: of_numbers(GaussianNB()),
    "multinomial": lambda: of_text(CountVectorizer(), MultinomialNB()),
    "complement": lambda: of_text(TfidfVectorizer(), ComplementNB()),
    "categorical": lambda: of_columns(OrdinalEncoder(), CategoricalNB()),
    "forest": lambda: of_columns(OrdinalEncoder(), RandomForestRegressor(3, random_state=0)),
    "forest of polynomials": lambda: of_numbers(PolynomialFeatures(2), RandomForestRegressor(3, random_state=0)),
    "categorical, of numbers": lambda: of_numbers(CategoricalNB()),
    "box-cox": lambda: of_numbers(PowerTransformer("box-cox"), LinearRegression()),
    "neighbours": lambda: of_numbers(MinMaxScaler(), KNeighborsRegressor(3)),
}
RAW = [{"size": value} for value in (None, "x", True, [1], 1e39, 10**400, -1e400)] + [
    *({"shop": value} for value in (None, "", "x", 1.5, 2**63, [])),
    *({"town": value} for value in (None, 1.5, {})),
    *({"note": value} for value in (1, [], {})),
    {"more": 1},
]
"""Values that the features themselves refuse."""


def beside(number, dtype):
    """The neighbours of a number in float32 or float64, and the number as it is there."""
    one = dtype(number)
    return [float(np.nextafter(one, dtype(-np.inf))), float(one), float(np.nextafter(one, dtype(np.inf)))]


def odd_numbers(name):
    """What a client may write in a column of numbers: those that it may compare come first, then those that are far."""
    known = sorted({row[name] for row in ROWS})
    edges = [*known, *((one + other) / 2 for one, other in itertools.pairwise(known))]
    near = [number for edge in edges for number in beside(edge, np.float32)]
    near += [number for edge in (known[0], edges[-1], known[-1]) for number in beside(edge, np.float64)]
    near += [0.0, -0.0, 5e-324, 2.3e-308, 1e-45, 1.1754942e-38, 0.1, 1e-7, int(known[1])]
    far = [-1, -1e-45, -5e-324, -1e-7, 2**24 + 1, -(2**24) - 1, 16777217.5, 2**53 + 1, -(2**53) - 1, 2**63, 10**30]
    return near, [*far, 3.4028234e38, 3.4028235e38, -3.4028236e38, 1e19, 1e308, -1e308]


ODD_IDS = [sign * number for number in (2**24 + 1, 2**31, 2**53, 2**53 + 1, 2**62) for sign in (1, -1)]
ODD_TOWNS = ["ROME", "Rome", " rome", "rome\u0000", "r\u043eme", "\u0440\u0438\u043c", "\u6771\u4eac", "\U0001f600"]


def odd_rows(spec, base):
    """Rows with odd values, and whether the numbers of the answers are compared and not only whether there are any."""
    rows = [(one.row, one.is_compared) for one in made_rows(spec, ROWS)]
    rows += [({**base, **more}, True) for more in RAW if more.keys() <= {*base, "more"}]
    if spec is MATRIX:
        for name in base:
            near, far = odd_numbers(name)
            rows += [({**base, name: number}, place < len(near)) for place, number in enumerate(near + far)]
    else:
        rows += [({**base, "shop": number}, True) for number in ODD_IDS]
        rows += [({**base, "town": town}, True) for town in ODD_TOWNS]
    return [*rows, (base, True)]


def fitted(spec, model):
    return model.fit(spec.encode(ROWS)["x"] if spec is MATRIX else FRAME, CLASSES)


def written(model, spec, folder):
    """The exporter of a model, and its graph."""
    exporter = sklearn_exporter(model)
    inputs = spec.encode(ROWS)
    answer = exporter.answer(inputs)
    outputs = describe_outputs(name_outputs(answer, None), answer.arrays, len(ROWS))
    path = folder / exporter.write("onnx", folder, GraphSignature(spec.inputs, outputs, inputs))
    return exporter, OnnxGraph(path.read_bytes(), inputs=spec.inputs, outputs=outputs, threads=1)


def as_request(row):
    """A row as JSON text, where infinity is a number that is too long."""
    return json.dumps(row).replace("Infinity", "1e400").encode()


def served(graph, spec, texts):
    """What each row is answered, or None where it is refused, all in one batch."""
    items, places = [], []
    for place, text in enumerate(texts):
        try:
            items.append(msgspec.json.decode(text, type=spec.item_type()))
            places.append(place)
        except msgspec.DecodeError:
            pass  # 422 before it comes to the stage
    found = ServedModel(spec, graph, format="onnx").predict_rows(items)
    answers = [None] * len(texts)
    for number, kept in enumerate(found.kept):
        answers[places[kept]] = [output[number] for output in found.values.values()]
    return answers, {places[place]: error for place, error in found.invalid.items()}


def answered(exporter, spec, row):
    """What the model answers to one row; None where the features or the model refuse it."""
    encoded = spec.encode_rows([row])
    if not encoded.kept:
        return None
    try:
        return [array[0] for array in exporter.answer(encoded.inputs).arrays]
    except ConfigError:
        return None


@pytest.mark.parametrize("kind", PIPELINES)
@pytest.mark.filterwarnings("ignore")
def test_a_graph_refuses_what_its_model_refuses_and_answers_the_rest_alike(tmp_path, kind):
    spec, model = PIPELINES[kind]()
    exporter, graph = written(fitted(spec, model), spec, tmp_path)
    base = {column: ROWS[0][column] for column in spec.columns}
    rows, compared = zip(*odd_rows(spec, base), strict=True)
    texts = [as_request(row) for row in rows]
    assert len(set(texts)) > 60
    found, invalid = served(graph, spec, texts)
    for place, (row, is_compared, got) in enumerate(zip(rows, compared, found, strict=True)):
        expected = answered(exporter, spec, row)
        if expected is None:
            assert got is None, row
        elif got is None:  # of so large a number nothing can be computed in float32
            assert not is_compared, row
            assert "e+38 makes no number before step" in str(invalid[place]), row
        elif is_compared:
            for one, other in zip(expected, got, strict=True):
                if isinstance(one, np.floating):
                    assert math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-5), row
                elif np.ndim(one):
                    np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5, err_msg=str(row))
                else:
                    assert one == other, row
    assert all(error.path.startswith("$.") for error in invalid.values() if "feature column" not in str(error))
    assert found[-1] is not None


UNSEEN = {**ROWS[0], "shop": 99}
"""A row with a value of one column that is in no row of training."""


@pytest.mark.parametrize("encoder", [OneHotEncoder, OrdinalEncoder])
def test_an_unseen_category_is_the_caller_s_with_its_column_and_the_others_are_answered(tmp_path, encoder):
    spec, model = of_columns(encoder(), LogisticRegression())
    report = ps.export.save(
        fitted(spec, model), tmp_path / "model", features=spec, reference_rows=ROWS[:3], validation_data=ROWS
    )
    assert report.rows == len(ROWS) + 3
    stage = ArtifactStage()
    stage.setup(path=str(report.path), digest=report.digest, format="onnx", trust=False)
    alone = stage.predict(ROWS[:2])
    found = stage.predict([ROWS[0], UNSEEN, ROWS[1], {**ROWS[0], "town": "paris"}])
    assert [found[0], found[2]] == alone
    assert [type(one) for one in found[1::2]] == [ps.InvalidItem] * 2
    assert (found[1].path, found[3].path) == ("$.shop", "$.town")
    step = f"step 'columntransformer.kind' ({encoder.__name__})"
    assert found[1].reason == f"99 is unknown to {step}"
    assert found[3].reason == f"'paris' is unknown to {step}"
    assert [type(one) for one in stage.predict([UNSEEN])] == [ps.InvalidItem]


def test_a_number_of_which_too_large_a_one_is_computed_is_refused_with_its_column(tmp_path):
    spec, model = of_numbers(PolynomialFeatures(2), StandardScaler(), LogisticRegression())
    _, graph = written(fitted(spec, model), spec, tmp_path)
    found = ServedModel(spec, graph, format="onnx").predict_rows(
        [{"size": 1.0, "price": 2e30}, {"size": 1.0, "price": 2.0}]
    )
    assert (found.kept, found.invalid[0].path) == ([1], "$.price")
    assert found.invalid[0].reason.startswith("2e+30 makes a number too large for float32 before step")


@pytest.mark.parametrize("method", ["yeo-johnson", "box-cox"])
def test_a_number_whose_power_is_too_large_is_refused_as_the_model_does_and_taken_for_no_zero(tmp_path, method):
    rows = [{"size": row["size"], "price": math.sqrt(row["price"])} for row in ROWS]
    powers = PowerTransformer(method)
    model = make_pipeline(powers, LogisticRegression()).fit(MATRIX.encode(rows)["x"], CLASSES)
    assert powers.lambdas_[1] > 1
    report = ps.export.save(model, tmp_path / "model", features=MATRIX, reference_rows=rows[:3], validation_data=rows)
    stage = ArtifactStage()
    stage.setup(path=str(report.path), digest=report.digest, format="onnx", trust=False)
    far, large, given = stage.predict([{**rows[0], "price": price} for price in (3e38, 1e9, 2.0)])
    assert isinstance(far, ps.InvalidItem)
    assert (far.path, far.reason) == (
        "$.price",
        "3e+38 makes a number too large for float32 in step 'powertransformer' (PowerTransformer)",
    )
    asked = MATRIX.encode([{**rows[0], "price": price} for price in (1e9, 2.0)])["x"]
    for answer, expected in zip((large, given), model.predict_proba(asked), strict=True):
        assert answer["probabilities"] == pytest.approx(expected.tolist(), abs=1e-5)


PLANTED = {
    "an encoder": (lambda: of_columns(OrdinalEncoder(), LogisticRegression()), "unknown categories"),
    "a box-cox": (lambda: of_numbers(PowerTransformer("box-cox"), LinearRegression()), "strictly positive"),
    "infinity": (lambda: of_numbers(PolynomialFeatures(2), RandomForestRegressor(2)), "value too large"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_graph_that_answers_where_its_model_refuses_is_found(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(RefusingNodes, "add", lambda *_: None)
    make, reason = PLANTED[kind]
    spec, model = make()
    rows = [{column: row[column] for column in spec.columns} for row in ROWS]
    with pytest.raises(ExportRefused, match=f"accepts a row that the model rejects, .*{reason}.*; have the model answ"):
        ps.export.save(fitted(spec, model), tmp_path / "model", features=spec, reference_rows=rows[:3])
    assert list(tmp_path.iterdir()) == []


def test_text_alone_is_counted_as_its_model_counts_it_in_every_language(tmp_path):
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit([row["note"] for row in ROWS], CLASSES)
    report = ps.export.save(model, tmp_path / "model", features=TEXT, reference_rows=[{"note": note} for note in NOTES])
    stage = ArtifactStage()
    stage.setup(path=str(report.path), digest=report.digest, format="onnx", trust=False)
    for text in ("ΟΔΟΣ", "İSTANBUL", "STRASSE", "STRA\u1e9eE", "NAI\u0308VE", "", "\U0001f600 red\U0001f600house"):
        (found,) = stage.predict([{"note": text}])
        assert found["probabilities"] == pytest.approx(model.predict_proba([text])[0].tolist(), abs=1e-6), text
    assert b"StringNormalizer" not in (report.path / "model.onnx").read_bytes()


TEXTS = [*NOTES, *rewritten_texts(NOTES), "a  b\t\tc", " x", "\uff21\u0661 \u2167\u0966", "\U00020000\U0001d7d9"]


@pytest.mark.parametrize("kind", VECTORIZERS)
def test_the_terms_of_a_text_are_those_of_its_vectorizer(kind):
    vectorizer = VECTORIZERS[kind]().fit(NOTES)
    words, analyze = sklearn_words.words_told(vectorizer, name="words", source="note"), vectorizer.build_analyzer()
    for text in TEXTS:
        assert words.terms(text) == analyze(text), text


def of_notes(vectorizer, notes):
    return make_pipeline(vectorizer, LogisticRegression()).fit(notes, [place % 2 for place in range(len(notes))])


def test_a_character_that_stands_between_terms_is_counted_as_no_other(tmp_path):
    model = of_notes(CountVectorizer(analyzer="char"), ["aa\x1eb", "bb", "a\x1e", "ab#"] * 3)
    report = ps.export.save(model, tmp_path / "model", features=TEXT, reference_rows=[{"note": "bb"}, {"note": "ab"}])
    stage = ArtifactStage()
    stage.setup(path=str(report.path), digest=report.digest, format="onnx", trust=False)
    texts = ["a\x1fb", "a\x1eb", "a\x1f\x1e\x1fb", "\x1f", "a"]
    for text, found in zip(texts, stage.predict([{"note": text} for text in texts]), strict=True):
        assert found["probabilities"] == pytest.approx(model.predict_proba([text])[0].tolist(), abs=1e-6), text


NOT_GIVEN = {
    "a term with what stands between them": (
        lambda: CountVectorizer(analyzer="char"),
        r"step 'countvectorizer' .* counts the term '\\x1f', which",
    ),
    "an empty term": (lambda: CountVectorizer(token_pattern=r"\w*"), "counts the term '', which a graph cannot store"),
    "an analyzer": (lambda: CountVectorizer(analyzer=str.split), r"step 'countvectorizer' .*: analyzer= is a function"),
    "a tokenizer": (lambda: TfidfVectorizer(tokenizer=str.split), "tokenizer= is a function, and a graph holds no"),
    "a preprocessor": (lambda: CountVectorizer(preprocessor=str.upper), "preprocessor= is a function"),
    "accents": (lambda: CountVectorizer(strip_accents=str.strip), "strip_accents= is a function"),
}


@pytest.mark.parametrize("kind", NOT_GIVEN)
@pytest.mark.filterwarnings("ignore")
def test_a_vectorizer_whose_terms_cannot_be_given_to_a_graph_is_refused_by_name(tmp_path, kind):
    make, reason = NOT_GIVEN[kind]
    model = of_notes(make(), ["red house", "blue\x1fsea"] * 3)
    with pytest.raises(ExportRefused, match=reason):
        ps.export.save(model, tmp_path / "model", features=TEXT, reference_rows=[{"note": "red"}])


def test_text_that_is_read_otherwise_is_found_in_rows_that_the_proof_makes(tmp_path, monkeypatch):
    told = sklearn_words.words_told
    monkeypatch.setattr(
        sklearn_words, "words_told", lambda *of, **by: msgspec.structs.replace(told(*of, **by), lower=False)
    )
    texts = ["οδος", "blue sea"] * 9
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, [0, 1] * 9)
    with pytest.raises(ExportRefused, match=r"^of the rows that the proof makes of yours, .*note.*ΟΔΟΣ"):
        ps.export.save(model, tmp_path / "model", features=TEXT, reference_rows=[{"note": text} for text in texts[:2]])


def test_text_of_another_step_is_refused_for_its_words_cannot_be_taken_before_the_graph():
    text = types.SimpleNamespace(is_root=False)
    with pytest.raises(ValueError, match="its text is the output of another step"):
        sklearn_words.words_of(CountVectorizer().fit(NOTES), types.SimpleNamespace(inputs=[text]), None)
