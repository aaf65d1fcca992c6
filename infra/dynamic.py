"""Dynamic providers run today's code: the state holds a provider's name, never its code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pulumi.dynamic import DiffResult, ResourceProvider
from pulumi.runtime import rpc

from decamp.provider import load_provider

PROVIDER_KEY = "__provider"


class NamedProvider(ResourceProvider):
    """A provider that is written to the state as its name and imported again when it is needed.

    An old `up` therefore leaves no old code behind: what a delete does is decided by the checkout it runs in. A name
    that can no longer be imported fails the operation, which for a guard is a refusal.
    """

    # The name is no secret, and a plain value keeps a diff of the state readable.
    serialize_as_secret_always = False

    def __reduce__(self) -> tuple[Any, ...]:
        return load_provider, (type(self).__module__, type(self).__qualname__)


def find_changes(olds: Mapping[str, Any], news: Mapping[str, Any], keys: tuple[str, ...]) -> list[str]:
    """The keys whose value differs, or may differ because it is not known before the resources above it are made."""
    return [key for key in keys if news.get(key) == rpc.UNKNOWN or olds.get(key) != news.get(key)]


def diff_inputs(
    olds: Mapping[str, Any],
    news: Mapping[str, Any],
    *,
    identity: tuple[str, ...] = (),
    settings: tuple[str, ...] = (),
    drifted: bool = False,
    gone: bool = False,
) -> DiffResult:
    """Replaces when identity changes or the thing is gone, updates when anything else does; old things go first.

    Args:
        olds: properties in the state.
        news: properties asked for; what is not known yet counts as changed.
        identity: keys whose change makes it another thing.
        settings: keys that can be changed in place.
        drifted: the real thing is not as the state says, and an update puts it right.
        gone: the real thing is no more.
    """
    replaces = find_changes(olds, news, identity)
    if gone:
        replaces = list(identity[:1])
    moved = olds.get(PROVIDER_KEY) != news.get(PROVIDER_KEY)
    changes = bool(replaces) or drifted or moved or bool(find_changes(olds, news, settings))
    return DiffResult(changes=changes, replaces=replaces, delete_before_replace=True)
