"""A node that leaves the stack while another comes is asked for before anything is made.

The engine makes new resources before it deletes old ones. A rename is both: without this, the new node would be paid
for before the old one's guard could refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from decamp.teardown import GuardedNode
from infra.config import StackConfig


def find_departing(config: StackConfig, guarded: Sequence[GuardedNode]) -> list[GuardedNode]:
    """Returns the guarded nodes that the configuration no longer asks for, if it asks for any that is not guarded.

    Args:
        config: the stack's settings.
        guarded: nodes with a guard in the stack's state.

    Returns:
        Nodes that must be asked for first; none when nothing new is to be made, as their guards suffice then. A node
        of the same name from another target is another node.
    """
    wanted = {(node.name, config.target) for node in config.nodes}
    held = {(node.name, node.target) for node in guarded}
    if wanted <= held:
        return []
    return [node for node in guarded if (node.name, node.target) not in wanted]


def ask_departing(
    config: StackConfig, guarded: Sequence[GuardedNode], ask: Callable[[Sequence[GuardedNode]], None]
) -> None:
    """Returns when no node leaves, or every leaving one may go.

    Raises:
        DecampError: what `ask` raises for those that must stay.
    """
    departing = find_departing(config, guarded)
    if departing:
        ask(departing)
