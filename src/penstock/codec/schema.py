"""What a type means to a caller: the formats it can be sent in, and its JSON Schema as OpenAPI 3.1 has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_origin

import msgspec

from penstock.codec.annotations import (
    Signature,
    alternatives,
    array_kind,
    bytes_kind,
    is_array,
    is_numpy_scalar,
    is_pydantic,
    signature,
    takes_file,
    type_name,
)
from penstock.codec.custom import model_reader
from penstock.codec.dataclass_init import dataclasses_in, fields_without_init, not_as_made
from penstock.codec.formats import Codec
from penstock.codec.sendable import unsendable
from penstock.codec.type_cache import fill_type_cache
from penstock.errors import ConfigError

__all__ = ["Signature", "accepts", "json_schema", "offers", "signature", "type_name"]

REF_TEMPLATE = "#/components/schemas/{name}"


def accepts(item_type: Any) -> frozenset[Codec]:
    """The formats a caller may send an item of this type in; none where it is a file that a job has fetched.

    Raises:
        ConfigError: no JSON or MessagePack can be read as this type, for instance a union of two lists, or it needs
            an object that they cannot bring, as a `complex`.
    """
    if takes_file(item_type):
        return frozenset()
    by_msgspec = model_reader(item_type) is None
    if by_msgspec:
        try:
            fill_type_cache(item_type)
        except TypeError as exc:
            raise ConfigError(f"`{type_name(item_type)}` cannot be the input type of a service: {exc}") from exc
        strange = unsendable(item_type)
        if strange is not None:
            raise ConfigError(
                f"`{type_name(item_type)}` cannot be the input type of a service: a request cannot contain "
                f"`{type_name(strange)}`; accept a JSON type, and create the object in `preprocess`"
            )
    reason = not_as_made(item_type, by_pydantic=not by_msgspec)
    if reason:
        raise ConfigError(
            f"`{type_name(item_type)}` cannot be the input type of a service: {reason}; accept plain values, and "
            "create the object in `preprocess`"
        )
    found = {Codec.JSON, Codec.MSGPACK}
    if bytes_kind(item_type) is not None:
        found.add(Codec.RAW)
    if array_kind(item_type) is not None:
        found.add(Codec.NPY)
    return frozenset(found)


def offers(result_type: Any) -> tuple[Codec, ...]:
    """The formats a caller may get a result of this type in, the preferred one first."""
    kinds = alternatives(result_type)
    if all(bytes_kind(kind) is not None for kind in kinds):
        return (Codec.RAW, Codec.JSON, Codec.MSGPACK)
    if all(map(is_array, kinds)):
        return (Codec.JSON, Codec.MSGPACK, Codec.NPY)
    return (Codec.JSON, Codec.MSGPACK)


def json_schema(type_: Any, *, ref_template: str = REF_TEMPLATE) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The schema of one type, and the schemas of the classes it refers to, by their names.

    `ref_template` says how a reference to such a class is written; ``{name}`` stands for the name.  A type that has
    no form in JSON has the schema that allows anything.
    """
    if model_reader(type_) is not None:
        from penstock.codec import pydantic_

        return pydantic_.model_schema(type_, ref_template)
    components: dict[str, dict[str, Any]] = {}
    if is_array(type_):  # msgspec would not pass the dtype to the hook
        return _custom_schema(type_, ref_template, components), {}

    def custom(inner: Any) -> dict[str, Any]:
        return _custom_schema(inner, ref_template, components)

    try:
        fill_type_cache(type_)
        (schema,), own = msgspec.json.schema_components((type_,), schema_hook=custom, ref_template=ref_template)
    except TypeError:
        return {}, {}
    for cls in dataclasses_in(type_):
        _show_as_read_only(fields_without_init(cls), cls.__name__, own.values())
    return schema, components | own


def _show_as_read_only(fields: frozenset[str], name: str, components: Iterable[dict[str, Any]]) -> None:
    """Say in the schema of the class `name` that its `fields` are in answers, and never in requests."""
    for component in components:
        properties = component.get("properties", {})
        if fields and fields <= properties.keys() and component["title"].partition("[")[0] == name:
            component["required"] = [field for field in component.get("required", ()) if field not in fields]
            for field in fields:
                properties[field] = {**properties[field], "readOnly": True}


def _custom_schema(type_: Any, ref_template: str, components: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The schema of a type msgspec does not know; classes it refers to are added to `components`."""
    if is_array(type_):
        from penstock.codec import numpy_

        declared = numpy_.declared_dtype(type_)
        of = "" if declared == numpy_.ANYTHING else f" of `{declared.name}`"
        return {"type": "array", "description": f"A NumPy array{of}, as lists of numbers nested once per axis."}
    if is_numpy_scalar(type_):
        from penstock.codec import numpy_

        return {"type": numpy_.json_type(type_)}
    if is_pydantic(type_):
        from penstock.codec import pydantic_

        schema, found = pydantic_.model_schema(type_, ref_template)
        components.update(found)
        return schema
    return {"description": f"An object of type `{type_name(get_origin(type_) or type_)}`."}
