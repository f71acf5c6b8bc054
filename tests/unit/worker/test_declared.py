"""What a stage declares of one setup: its types, its examples and its batch policy."""

from __future__ import annotations

import msgspec
import pytest

import penstock as ps
from penstock.codec.annotations import Signature
from penstock.worker.declaration import Declaration
from penstock.worker.declared import declaration_of, declared_signature


class Scaled(ps.Stage):
    """Its setup says what it takes."""

    examples = ["of the class"]

    @classmethod
    def declare(cls, *, field, size=2):
        item = msgspec.defstruct("Scaled", [(field, float)], forbid_unknown_fields=True)
        return Declaration(item=item, result=dict[str, float], examples=[{field: 1.0}], batch=ps.Batch(max_size=size))

    def setup(self, *, field, size=2):
        self.field = field

    def predict(self, xs):
        return [{"twice": 2 * (x[self.field] if isinstance(x, dict) else getattr(x, self.field))} for x in xs]


class OnlyResult(ps.Stage):
    @classmethod
    def declare(cls):
        return Declaration(result=int)

    def predict(self, x: str):
        return len(x)


def test_a_stage_without_a_declaration_is_as_its_class_says():
    assert declaration_of(ps.Stage, {}) == Declaration()
    assert declaration_of(len, {}) == Declaration()


def test_what_is_not_declared_is_what_the_annotations_say():
    declared = declaration_of(OnlyResult, {})
    assert declared_signature(OnlyResult, declared, batched=False) == Signature(str, int)


def test_annotations_are_not_asked_where_both_types_are_declared():
    class Unresolvable(ps.Stage):
        def predict(self, x: Nowhere) -> Nowhere:  # noqa: F821
            return x

    declared = Declaration(item=str, result=int)
    assert declared_signature(Unresolvable, declared, batched=False) == Signature(str, int)


def test_a_spec_keeps_what_its_setup_declares():
    spec = ps.stage(Scaled, setup={"field": "age", "size": 5})
    assert spec.batch == ps.Batch(max_size=5)
    assert spec.examples == ({"age": 1.0},)
    assert spec.signature().item.__struct_fields__ == ("age",)
    assert spec.signature().result == dict[str, float]


def test_a_policy_that_is_given_wins_over_a_declared_one():
    assert ps.stage(Scaled, setup={"field": "age"}, batch=ps.Batch(max_size=9)).batch == ps.Batch(max_size=9)


def test_a_declaration_is_asked_for_once():
    asked = []

    class Counted(ps.Stage):
        @classmethod
        def declare(cls):
            asked.append(cls)
            return Declaration(item=int, result=int)

        def predict(self, x):
            return x

    spec = ps.stage(Counted)
    service = ps.Service(spec)
    for _ in range(3):
        assert service.stages[0].signature().item is int
    assert asked == [Counted]


def test_what_is_no_declaration_is_refused():
    class Wrong(ps.Stage):
        @classmethod
        def declare(cls):
            return {"item": int}

        def predict(self, x):
            return x

    with pytest.raises(ps.ConfigError, match=r"Wrong.declare must return a penstock.Declaration, got \{'item'"):
        ps.stage(Wrong)


def test_declared_examples_must_be_a_list():
    class Wrong(ps.Stage):
        @classmethod
        def declare(cls):
            return Declaration(examples="abc")

        def predict(self, x):
            return x

    with pytest.raises(ps.ConfigError, match="examples must be a list of items, got 'abc'"):
        ps.stage(Wrong)


async def test_a_worker_decodes_as_declared_and_is_warmed_up_with_the_declared_examples():
    service = ps.Service(ps.stage(Scaled, setup={"field": "age"}), inline=True, validate_inputs=True)
    async with service:
        assert await service.predict({"age": 4}) == {"twice": 8.0}
        with pytest.raises(ps.InvalidItem, match="unknown field `years`"):
            await service.predict({"age": 4, "years": 1})
