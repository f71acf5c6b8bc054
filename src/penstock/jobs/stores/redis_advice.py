"""Decide from what a Redis server tells of itself whether jobs are safe in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.config import MIB
from penstock.jobs.advice import Advice

LEAST_VERSION: Final = (6, 2)
_FSYNC = {
    "always": "every acknowledged write is on disk: nothing is lost",
    "everysec": "a crash or a power cut may lose the last one or two seconds; appendfsync always loses "
    "nothing, but is slow",
    "no": "the operating system decides when to write: a power cut may lose 30 s",
}


def read_version(text: str) -> tuple[int, ...]:
    """The numbers of a version; nothing where it cannot be read."""
    parts = text.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def advise(info: Mapping[str, str], settings: Mapping[str, str]) -> list[Advice]:
    """What is right and what is wrong with a server.

    Args:
        info: what INFO tells.
        settings: what CONFIG GET tells; empty where we may not ask.
    """
    return [_version(info), _policy(info, settings), *_memory(info), *_append_only(info, settings), _writes(info)]


def _version(info: Mapping[str, str]) -> Advice:
    found = info.get("redis_version", "unknown")
    wrong = read_version(found) < LEAST_VERSION
    return Advice("version", found, wrong, "install Redis 6.2 or later" if wrong else "")


def _policy(info: Mapping[str, str], settings: Mapping[str, str]) -> Advice:
    found = settings.get("maxmemory-policy") or info.get("maxmemory_policy", "unknown")
    wrong = found != "noeviction"
    remedy = "a full server evicts jobs: CONFIG SET maxmemory-policy noeviction, and set it in redis.conf"
    return Advice("maxmemory-policy", found, wrong, remedy if wrong else "")


def _memory(info: Mapping[str, str]) -> list[Advice]:
    """How full the server is, where it has a limit."""
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not most:
        return []
    remedy = "new jobs are rejected: purge finished jobs, or raise maxmemory with CONFIG SET and in redis.conf"
    found = f"{used / MIB:.1f} of {most / MIB:.1f} MiB"
    return [Advice("memory", found, used >= most, remedy if used >= most else "")]


def _append_only(info: Mapping[str, str], settings: Mapping[str, str]) -> list[Advice]:
    enabled = info.get("aof_enabled")
    if enabled != "1":
        remedy = "a restart loses the jobs since the last snapshot: CONFIG SET appendonly yes, and set it in redis.conf"
        return [Advice("appendonly", "no" if enabled == "0" else "unknown", wrong=True, remedy=remedy)]
    fsync = settings.get("appendfsync", "unknown")
    meaning = _FSYNC.get(fsync, "the server does not report it")
    return [Advice("appendonly", "yes"), Advice("appendfsync", fsync, fsync == "no", meaning)]


def _writes(info: Mapping[str, str]) -> Advice:
    """Whether the server can be written to, and what it writes arrives on its disk."""
    if info.get("role") in ("slave", "replica"):
        return Advice("role", "replica", wrong=True, remedy="use the URL of the primary: a replica accepts no writes")
    failing = [name for name in ("aof_last_write_status", "aof_last_bgrewrite_status") if info.get(name, "ok") != "ok"]
    if failing:
        remedy = "the server cannot write to its disk: check the disk and the log of the server"
        return Advice("disk", f"{', '.join(failing)} not ok", wrong=True, remedy=remedy)
    return Advice("disk", "ok")
