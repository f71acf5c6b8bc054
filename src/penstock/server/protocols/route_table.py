"""Which route answers a path: by one look-up where the path is fixed, else by its segments.

A path may have several routes, one for each method.  They have one `allow`, and know one another.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.server.protocols.route import Route


class RouteTable:
    """The routes of a server.

    `fixed` has the first route of each path without variables; who asks for each request looks there first.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self.fixed: dict[bytes, Route] = {}
        self._patterns: dict[int, list[Route]] = {}
        """The first route of each path with variables, by how many slashes it has."""
        self.all = list(routes)
        """Every route, in the order in which they were given."""
        by_path: dict[str, list[Route]] = {}
        for route in self.all:
            by_path.setdefault(route.path, []).append(route)
        for path, same in by_path.items():
            join_methods(same)
            if same[0].pattern.fixed:
                self.fixed[path.encode()] = same[0]
            else:
                self._patterns.setdefault(same[0].pattern.slashes, []).append(same[0])

    def with_variables(self, path: bytes) -> Route | None:
        """The first route of the first pattern that `path` fits, or None."""
        for route in self._patterns.get(path.count(b"/"), ()):
            if route.pattern.values(path) is not None:
                return route
        return None


def join_methods(routes: list[Route]) -> None:
    """Let `routes` be those of one path, each for its own method."""
    methods = [method for route in routes for method in route.methods]
    assert len(set(methods)) == len(methods), f"{routes[0].path} has two routes for one method"
    allow = ", ".join([*methods, "OPTIONS"]).encode()
    for route in routes:
        route.allow = allow
        route.same_path = tuple(routes)
