"""The names of an object's classes, to tell what it is without an import of the library that it comes from."""

from __future__ import annotations


def class_names(value: object) -> frozenset[str]:
    """The classes of `value`, near and far, each as the library it comes from and its name: ``torch.Module``."""
    return frozenset(f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(value).__mro__)
