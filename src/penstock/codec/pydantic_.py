"""pydantic models on the wire.  The only file of the package that imports pydantic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pydantic

from penstock.codec.invalid import UnreadablePart
from penstock.core.payload import Buffer

MOST_ERRORS = 20
"""Most errors of one item that its caller is told."""
_SYNTAX = msgspec.json.Decoder()


class ModelReader:
    """Reads items whose annotation names a pydantic model; pydantic's rules are applied to all of the item."""

    def __init__(self, adapter: pydantic.TypeAdapter[Any]) -> None:
        self._adapter = adapter

    def json(self, payload: Buffer) -> Any:
        """The item of a JSON payload.  Raises UnreadablePart, or what msgspec raises for broken JSON."""
        # pydantic alone would let NaN, Infinity and 1e999 in, which are not JSON
        _SYNTAX.decode(payload)
        try:
            return self._adapter.validate_json(bytes(payload))
        except pydantic.ValidationError as exc:
            raise _refused(exc) from exc

    def value(self, value: Any) -> Any:
        """The item that a plain value stands for.  Raises UnreadablePart."""
        try:
            return self._adapter.validate_python(value)
        except pydantic.ValidationError as exc:
            raise _refused(exc) from exc


def reader_for(type_: Any) -> ModelReader | None:
    """A reader for the whole annotation, or None if part of it is a type pydantic does not know."""
    try:
        return ModelReader(pydantic.TypeAdapter(type_))
    except pydantic.errors.PydanticUserError:
        return None


def read_model(value: Any, model: type[pydantic.BaseModel]) -> pydantic.BaseModel:
    """The model that a plain value stands for.  Raises UnreadablePart."""
    try:
        return model.model_validate(value)
    except pydantic.ValidationError as exc:
        raise _refused(exc) from exc


def remaking(cls: Any) -> Callable[[Any], None]:
    """A function that has the `__init__` of a pydantic dataclass make an object in which others have set the fields.

    It raises UnreadablePart.
    """
    init, names = cls.__init__, [field.name for field in dataclasses.fields(cls) if field.init]

    def penstock_remake(made: Any) -> None:
        given = {name: vars(made)[name] for name in names if name in vars(made)}
        vars(made).clear()
        try:
            init(made, **given)
        except pydantic.ValidationError as exc:
            raise _refused(exc) from exc

    return penstock_remake


def plain_fields(model: pydantic.BaseModel) -> Any:
    """The model's fields, under the names its schema shows."""
    return model.model_dump(mode="json", by_alias=True)


def model_schema(type_: Any, ref_template: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The schema of an annotation that `reader_for` can read, and the schemas it refers to by name."""
    schema = pydantic.TypeAdapter(type_).json_schema(ref_template=ref_template.replace("{name}", "{model}"))
    components = schema.pop("$defs", {})
    return schema, components


def _refused(exc: pydantic.ValidationError) -> UnreadablePart:
    """The errors of pydantic, each with its place; of many the first."""
    errors = exc.errors(include_url=False, include_context=False, include_input=False)
    told = [(error["msg"], _path(error["loc"])) for error in errors[:MOST_ERRORS]]
    return UnreadablePart(*told[0], told[1:], len(errors) - len(told))


def _path(location: tuple[int | str, ...]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return f"${path}" if path else ""
