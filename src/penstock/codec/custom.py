"""The types that we read and write although msgspec does not know them: numpy's arrays and scalars, pydantic's models.

`read_custom` and `write_custom` are msgspec's two hooks.  Their libraries are loaded with the first object that needs
them, so that a service without them never imports them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from penstock.codec.annotations import is_array, is_numpy_scalar, is_pydantic, mentioned

if TYPE_CHECKING:
    from penstock.codec.pydantic_ import ModelReader


def read_custom(type_: Any, value: Any) -> Any:
    """The object of `type_` that the builtins in `value` stand for.  Raises UnreadablePart.

    For an unknown type the value is returned as it is, and msgspec refuses it.
    """
    if is_array(type_):
        from penstock.codec import numpy_

        return numpy_.read_array(value, type_)
    if is_numpy_scalar(type_):
        from penstock.codec import numpy_

        return numpy_.read_scalar(value, type_)
    if is_pydantic(type_):
        from penstock.codec import pydantic_

        return pydantic_.read_model(value, type_)
    return value


def write_custom(value: Any) -> Any:
    """The builtins that stand for an object msgspec cannot write.

    Raises:
        TypeError: nothing stands for it.
    """
    kind: Any = type(value)
    return _writer_of(kind)(value)


def write_sent(value: Any) -> Any:
    """As `write_custom`, for what callers send: a float16 or float32 is the shortest decimal that is this number.

    That is how features count it in training, and the float64 with its bits is another number.
    """
    if is_numpy_scalar(type(value)):
        from penstock.codec import numpy_

        if numpy_.is_narrow(value.dtype):
            return numpy_.widen(value)
    return write_custom(value)


@lru_cache(maxsize=256)
def _writer_of(kind: Any) -> Callable[[Any], Any]:
    """The function that makes builtins of objects of class `kind`; it is looked up once for each class."""
    if is_array(kind) or is_numpy_scalar(kind):
        from penstock.codec import numpy_

        return numpy_.plain_numbers
    if is_pydantic(kind):
        from penstock.codec import pydantic_

        return pydantic_.plain_fields
    return _refuse


def _refuse(value: Any) -> Any:
    kind = type(value)
    raise TypeError(
        f"an object of type `{kind.__module__}.{kind.__qualname__}` cannot be written as JSON or "
        f"MessagePack{_way_out(kind)}"
    )


def _way_out(kind: type) -> str:
    """What a stage can return in place of an object of class `kind`: the tensor of a framework is the usual one."""
    ways = [f"`.{name}()`" for name in ("tolist", "numpy") if hasattr(kind, name)]
    if ways:
        return f"; let the stage return its {' or '.join(ways)}"
    return "; let the stage return `numpy.asarray` of it" if hasattr(kind, "__array__") else ""


def model_reader(type_: Any) -> ModelReader | None:
    """A reader by pydantic for an annotation that names one of its models, where pydantic can read all of it."""
    if not any(map(is_pydantic, mentioned(type_))):
        return None
    from penstock.codec import pydantic_

    return pydantic_.reader_for(type_)
