"""A decoded object is what its class would have made, or the type is refused and the error says why."""

import abc
import copy
import datetime as dt
import decimal
import enum
import gc
import pickle
import uuid
import weakref
from collections.abc import Callable
from dataclasses import InitVar, asdict, dataclass, field
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar

import attrs
import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.codec import pickle_
from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import ItemEncoder, ResultMismatch
from penstock.codec.formats import Codec
from penstock.codec.schema import accepts, json_schema
from penstock.codec.type_cache import fill_type_cache
from penstock.errors import ConfigError, InvalidItem
from rows import each

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"

    @classmethod
    def _missing_(cls, value):
        return cls.RED if value == "rouge" else None


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class House(Generic[T]):
    inner: T
    garden: float = 10.0
    rooms: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen(Generic[T]):
    inner: T
    color: Color = Color.RED


@dataclass(slots=True)
class Slotted(Generic[T]):
    inner: T
    n: int = 3


@dataclass(kw_only=True)
class Keyword(Generic[T]):
    n: int = 3
    inner: T


@dataclass
class Area(Generic[T]):
    inner: T
    area: float = field(init=False)
    seen: list[int] = field(init=False, default_factory=list)
    unit: str = field(init=False, default="m2")

    def __post_init__(self):
        assert vars(self) == {"inner": self.inner, "seen": []}
        self.area = 2.5


@dataclass(slots=True)
class SlottedArea(Generic[T]):
    inner: T
    late: int = field(init=False, repr=False)
    area: float = field(init=False, default=1.5)


@dataclass
class Own(Generic[T]):
    inner: T
    n: int = 3

    def __init__(self, inner, *, n=4, **more):
        self.inner, self.n, self.also = [inner], n, len(more)


@dataclass
class Derived(House[T], Generic[T]):
    more: str = "more"


class Undecorated(House[T], Generic[T]):
    pass


@attrs.define
class Attrs(Generic[T]):
    inner: T
    _hidden: int = attrs.field(converter=lambda n: n * 2, default=1)
    made: list[int] = attrs.field(factory=list)
    late: int = attrs.field(init=False, default=7)


class Struct(msgspec.Struct, Generic[T]):
    inner: T
    n: int = 3
    names: list[str] = []


class ArrayStruct(msgspec.Struct, Generic[T], array_like=True, frozen=True):
    inner: T
    n: int = 3


class Dict(TypedDict, Generic[T]):
    inner: T


class Pair(NamedTuple, Generic[T]):
    inner: T
    n: int = 3


@pydantic.dataclasses.dataclass
class ModelDataclass:
    inner: int
    n: pydantic.PositiveInt = 3
    names: list[str] = pydantic.Field(default_factory=list)
    unit: str = pydantic.Field(default="m")


@dataclass
class Late:
    inner: int
    late: list[int] = field(init=False)
    seen: list[int] = field(init=False, default_factory=list)
    more: int = 4

    def __post_init__(self):
        self.late = [self.inner]


class InModel(pydantic.BaseModel):
    house: House[int]
    late: Late
    pair: Pair[Frozen[str]] = Pair(Frozen("a"))
    n: pydantic.PositiveInt = 3


LEAVES = [
    (int, st.integers(-(2**63), 2**63 - 1), int),
    (float, st.floats(allow_nan=False, allow_infinity=False), float),
    (bool, st.booleans(), bool),
    (str, st.text(max_size=5), str),
    (Annotated[int, msgspec.Meta(ge=0)], st.integers(0, 99), int),
    (type(None), st.none(), lambda _: None),
    (Color, st.sampled_from(["red", "blue"]), Color),
    (Level, st.sampled_from([1, 2]), Level),
    (dt.date, st.dates().map(str), dt.date.fromisoformat),
    (dt.datetime, st.datetimes().map(dt.datetime.isoformat), dt.datetime.fromisoformat),
    (dt.timedelta, st.sampled_from(["PT1S", "P1D"]), {"PT1S": dt.timedelta(0, 1), "P1D": dt.timedelta(1)}.get),
    (uuid.UUID, st.uuids().map(str), uuid.UUID),
    (decimal.Decimal, st.sampled_from(["1.50", "-3"]), decimal.Decimal),
    (np.float32, st.floats(width=32, allow_nan=False, allow_infinity=False), np.float32),
    (np.int8, st.integers(-128, 127), np.int8),
    (NDArray[np.float64], st.lists(st.floats(-9, 9), min_size=1, max_size=3), lambda x: np.array(x, np.float64)),
    (ModelDataclass, st.integers(-9, 9).map(lambda n: {"inner": n}), lambda x: ModelDataclass(**x)),
    (
        ModelDataclass,
        st.integers(1, 9).map(lambda n: {"unit": "x", "names": ["a"], "n": n, "inner": 1}),
        lambda x: ModelDataclass(**x),
    ),
    (
        InModel,
        st.just({"late": {"more": 5, "inner": 2}, "house": {"inner": 1}}),
        lambda _: InModel(house=House(1), late=Late(2, 5)),
    ),
]  # fmt: skip
MORE = {
    House: {"garden": 1.5, "rooms": [1]},
    Frozen: {"color": "blue"},
    Slotted: {"n": 5},
    Keyword: {"n": 5},
    Area: {},
    SlottedArea: {},
    Own: {"n": 5},
    Derived: {"garden": 1.5, "more": "x"},
    Undecorated: {"rooms": [2]},
    Attrs: {"_hidden": 5, "made": [1]},
    Struct: {"n": 5, "names": ["a"]},
}
"""What else a caller may send for an object of these classes."""


@st.composite
def typed(draw, depth=3):
    """A type, an item of it as a caller sends it, and the object of that type that its class makes."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        type_, values, make = draw(st.sampled_from(LEAVES))
        sent = draw(values)
        return type_, sent, make(sent)
    inner, sent, made = draw(typed(depth=depth - 1))
    kind = draw(st.sampled_from(["list", "dict", "optional", "tuple", Dict, Pair, ArrayStruct, *MORE]))
    match kind:
        case "list":
            return list[inner], [sent], [made]
        case "dict":
            return dict[str, inner], {"a": sent}, {"a": made}
        case "optional":
            return inner | None, sent, made
        case "tuple":
            return tuple[int, inner], [1, sent], (1, made)
        case _ if kind is Dict:
            return Dict[inner], {"inner": sent}, {"inner": made}
        case _ if kind in (Pair, ArrayStruct):
            return kind[inner], [sent, 5], kind(made, 5)
    more = {name: value for name, value in MORE[kind].items() if draw(st.booleans())}
    plain = {"inner": sent, **more}
    given = {name.lstrip("_"): Color(value) if value == "blue" else value for name, value in more.items()}
    return kind[inner], {name: plain[name] for name in draw(st.permutations(list(plain)))}, kind(inner=made, **given)


def parts(value):
    """All that tells two objects apart, as far down as it goes: also the order of attributes, which `==` leaves out."""
    if isinstance(value, np.ndarray):
        return type(value), value.dtype, value.tolist(), value.flags.writeable
    if isinstance(value, (list, tuple)):
        return type(value), [parts(each) for each in value]
    if isinstance(value, dict):
        return type(value), [(key, parts(each)) for key, each in value.items()]
    if isinstance(value, set):  # equal sets may differ in order
        return type(value), sorted(map(repr, value))
    if isinstance(value, enum.Enum):
        return type(value), value.name
    attributes = list(vars(value).items()) if hasattr(value, "__dict__") else []
    if hasattr(value, "__pydantic_fields_set__"):
        attributes.append(("set", sorted(value.__pydantic_fields_set__)))
    slots = [*getattr(value, "__struct_fields__", ()), *getattr(type(value), "__slots__", ())]
    attributes += [(name, getattr(value, name, "unset")) for name in slots if name != "__weakref__"]
    return type(value), [(name, parts(each)) for name, each in attributes], "" if attributes else repr(value)


def same(decoded, made):
    assert parts(decoded) == parts(made)
    assert repr(decoded) == repr(made)
    assert parts(copy.copy(decoded)) == parts(copy.copy(made))
    assert parts(copy.deepcopy(decoded)) == parts(made)
    assert parts(pickle.loads(pickle.dumps(decoded))) == parts(made)
    for codec in (Codec.JSON, Codec.MSGPACK):
        assert ItemEncoder(Any).encode(codec, decoded) == ItemEncoder(Any).encode(codec, made)


def refusal(type_):
    """Why a type is refused, or ""."""
    try:
        accepts(type_)
    except ConfigError as error:
        return str(error)
    return ""


@given(typed())
def test_what_is_decoded_is_what_the_class_would_have_made(drawn):
    type_, sent, made = drawn
    refused = refusal(type_)
    if refused:  # as a dataclass with its own `__init__` whose fields pydantic has to read
        assert "pydantic" in refused
        return
    decoder = ItemDecoder(type_)
    for codec, encode in ((Codec.JSON, msgspec.json.encode), (Codec.MSGPACK, msgspec.msgpack.encode)):
        same(decoder.decode(codec, encode(sent)), made)


@dataclass
class Abstract(abc.ABC):
    n: int

    @abc.abstractmethod
    def run(self): ...


@dataclass
class New:
    n: int

    def __new__(cls, n):
        return super().__new__(cls)


class Counted(type):
    def __call__(cls, *args, **kwargs):
        return super().__call__(*args, **kwargs)


@dataclass
class Metaclass(metaclass=Counted):
    n: int


@dataclass(init=False)
class NoInit:
    n: int


@dataclass
class Other:
    n: int

    def __init__(self, text: str):
        self.n = len(text)


@dataclass
class Wants:
    n: int

    def __init__(self, n, text):
        self.n = n


@dataclass
class Splits:
    words: list[str]

    def __init__(self, words: str):
        self.words = words.split()


@dataclass
class Property:
    n: int

    @property
    def n(self):
        return self._n

    @n.setter
    def n(self, n):
        self._n = n


@dataclass
class Initial:
    n: InitVar[int]


class Doubled(Pair[int]):
    def __new__(cls, inner, n=3):
        return super().__new__(cls, inner * 2, n)


class Matrix(np.ndarray): ...


@attrs.define
class TakesSelf:
    n: int
    m: int = attrs.field(default=attrs.Factory(lambda made: made.n, takes_self=True))


class OwnInModel(pydantic.BaseModel):
    own: Own[int]


class AreaInModel(pydantic.BaseModel):
    area: Area[int]


class ModelInStruct(msgspec.Struct):
    own: OwnInModel


REFUSED = [
    (Abstract, "`Abstract` is abstract"),
    (New, "`New` has its own `__new__` or metaclass, not only an `__init__`"),
    (Metaclass, "`Metaclass` has its own `__new__` or metaclass"),
    (NoInit, "the `__init__` of `NoInit` does not take `n`"),
    (Other, "the `__init__` of `Other` does not take `n`"),
    (Wants, "the `__init__` of `Wants` requires `text`, which is not a field"),
    (Splits, "the `__init__` of `Splits` takes `words` as `str`, and the field is `list[str]`"),
    (Property, "the field `n` of `Property` is a `property`"),
    (Initial, "dataclasses with `InitVar` fields are not supported"),
    (Doubled, "`Doubled` has its own `__init__` or `__new__`, which msgspec does not call"),
    (TakesSelf, "default factories with `takes_self=True`"),
    (OwnInModel, "`Own` has its own `__init__` or `__new__`, which pydantic does not call"),
    (AreaInModel, "pydantic sets the field `unit` of `Area`, although `init=False` reserves it for the class"),
    (ModelInStruct, "`Own` has its own `__init__` or `__new__`, which pydantic does not call"),
]


@each(("type_", "reason"), REFUSED)
@each("wrap", [lambda type_: type_, lambda type_: dict[str, list[type_]], lambda type_: House[type_]])
def test_a_type_whose_objects_would_be_others_is_refused_and_the_error_says_why(type_, reason, wrap):
    with pytest.raises(ConfigError) as refused:
        accepts(wrap(type_))
    assert reason in str(refused.value)
    assert "cannot be the input type of a service" in str(refused.value)
    with pytest.raises(InvalidItem) as invalid:
        ItemDecoder(wrap(type_)).decode(Codec.JSON, b"{}")
    assert reason in invalid.value.reason


def test_a_subclass_of_arrays_is_refused():
    with pytest.raises(ConfigError, match="a request cannot contain `Matrix`"):
        accepts(list[Matrix])


def test_what_is_refused_as_an_item_is_written_and_checked_as_a_result():
    encoder = ItemEncoder(Other, validate=True)
    assert encoder.encode(Codec.JSON, Other("four")) == b'{"n":4}'
    made = Other("four")
    made.n = "x"
    with pytest.raises(ResultMismatch, match=r"expected `int`, got `str` at `\$\.n`"):
        encoder.encode(Codec.JSON, made)


def test_a_field_without_init_is_not_demanded_and_what_comes_for_it_is_dropped():
    decoder = ItemDecoder(Area[int])
    same(decoder.decode(Codec.JSON, b'{"unit": "km", "area": 7, "inner": 1}'), Area(1))
    with pytest.raises(InvalidItem, match="object missing required field `inner`"):
        decoder.decode(Codec.JSON, b'{"area": 7}')
    _, components = json_schema(Area[int])
    (area,) = components.values()
    assert area["required"] == ["inner"]
    assert [name for name, each in area["properties"].items() if each.get("readOnly")] == ["area", "seen", "unit"]


def test_a_field_without_init_may_hold_what_no_request_can_bring():
    @dataclass
    class Held:
        n: int
        made: complex = field(init=False)

        def __post_init__(self):
            self.made = complex(self.n)

    assert accepts(Held)
    assert ItemDecoder(Held).decode(Codec.JSON, b'{"n": 2}').made == 2 + 0j


def test_a_field_without_init_is_checked_in_results_and_in_items_of_our_own_processes():
    area = Area(1)
    area.area = "large"
    with pytest.raises(ResultMismatch, match=r"at `\$\.area`"):
        ItemEncoder(Area[int], validate=True).encode(Codec.JSON, area)
    with pytest.raises(InvalidItem, match=r"at `\$\.area`"):
        ItemDecoder(Area[int], validate=True).decode(Codec.PICKLE, pickle_.dumps(area))


def test_an_object_of_the_caller_in_process_stays_what_it_is():
    own = Own(1, n=2, x=3)
    decoded = ItemDecoder(list[Own[list[int]] | None], validate=True).decode(Codec.PICKLE, pickle_.dumps([own]))
    same(decoded, [own])


def test_a_function_that_is_a_default_is_no_method():
    @dataclass
    class Layer:
        n: int
        activation: Callable[[float], float] = lambda x: x + 1

    assert ItemDecoder(Layer).decode(Codec.JSON, b'{"n": 1}').activation(1.0) == 2.0


def test_a_pydantic_dataclass_in_a_struct_is_checked_by_its_own_rules():
    same(ItemDecoder(Struct[ModelDataclass]).decode(Codec.JSON, b'{"inner": {"inner": 1}}').inner, ModelDataclass(1))
    with pytest.raises(InvalidItem) as invalid:
        ItemDecoder(list[InStruct]).decode(Codec.JSON, b'[{"part": {"inner": 1, "n": 0}}]')
    assert str(invalid.value) == "Input should be greater than 0 at `$[0].part.n`"


class InStruct(msgspec.Struct):
    part: ModelDataclass


def test_an_error_of_post_init_has_its_place():
    @dataclass
    class Even:
        n: int = 0

        def __post_init__(self):
            if self.n % 2:
                raise ValueError("odd")

    with pytest.raises(InvalidItem) as invalid:
        ItemDecoder(list[Even]).decode(Codec.JSON, b'[{}, {"n": 1}]')
    assert str(invalid.value) == "odd at `$[1]`"


def test_a_class_is_as_it_was_afterwards_and_meanwhile_its_objects_are_made_as_usual():
    seen = []

    @dataclass
    class Watched:
        n: "Annotated[int, look()]"
        m: int = field(init=False)
        more: int = 4

        def __post_init__(self):
            self.m = 5

    @dataclass
    class Inherits(Watched): ...

    @dataclass
    class Without:
        n: "Annotated[int, look()]"
        m: int = field(init=False, default=5)

    def look():
        for kind in (Watched, Inherits, Without):
            one = kind(3)
            seen.append((kind, one, asdict(one), hasattr(one, "__post_init__")))

    before = {kind: {**vars(kind)} for kind in (Watched, Inherits, Without)}
    globals()["look"] = look
    try:
        for kind in before:
            fill_type_cache(kind)
    finally:
        del globals()["look"]
    for kind, one, values, has_post_init in seen:
        assert values == asdict(one) == asdict(kind(3))
        assert has_post_init is (kind is not Without)
    assert {kind for kind, *_ in seen} == before.keys()
    for kind, own in before.items():
        assert {name: value for name, value in vars(kind).items() if name != "__msgspec_cache__"} == own


def test_a_named_tuple_below_another_without_code_of_its_own_is_taken():
    class Below(Pair[int]): ...

    assert ItemDecoder(Below).decode(Codec.JSON, b"[1]") == Below(1)


@each(
    "wrap",
    [lambda type_: type_, lambda type_: list[type_] | None, lambda type_: Dict[type_], lambda type_: House[type_]],
)
def test_what_msgspec_has_read_for_others_before_is_read_again(wrap):
    @dataclass
    class Early:
        n: int = 3

    def inner(value):
        for _ in range(2):
            value = value[0] if isinstance(value, list) else value
            value = value["inner"] if isinstance(value, dict) else getattr(value, "inner", value)
        return value

    msgspec.json.Decoder(wrap(Early))
    text = {Dict: b'{"inner": {}}', House: b'{"inner": {}}', list: b"[{}]"}
    sent = next((t for kind, t in text.items() if str(wrap(Early)).find(kind.__name__) >= 0), b"{}")
    assert vars(inner(ItemDecoder(wrap(Early)).decode(Codec.JSON, sent))) == {"n": 3}


def test_a_struct_that_msgspec_has_read_before_is_refused_where_it_would_leave_out_a_default():
    @dataclass
    class Early:
        n: int = 3

    @dataclass
    class Harmless:
        n: int

    class Basket(msgspec.Struct):
        early: Early

    class Harmlesses(msgspec.Struct):
        harmless: Harmless

    globals().update(Early=Early, Harmless=Harmless)
    try:
        msgspec.json.Decoder(Basket), msgspec.json.Decoder(Harmlesses)
    finally:
        del globals()["Early"], globals()["Harmless"]
    accepts(Early)
    with pytest.raises(ConfigError, match=r"msgspec read a Struct with `.*Early` before Penstock did"):
        accepts(list[Basket])
    assert accepts(Harmlesses)


def test_what_is_read_once_is_collected_with_its_class():
    def read():
        @dataclass
        class Short:
            n: int = field(init=False, default=3)

        ItemDecoder(Short).decode(Codec.JSON, b"{}")
        return weakref.ref(Short)

    gone = read()
    gc.collect()
    assert gone() is None
