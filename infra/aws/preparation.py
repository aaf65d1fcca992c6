"""Before an AWS stack is declared, the account was asked, the cost said, and no vanished node replaced unasked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import pulumi

from decamp.aws.account import Account
from decamp.errors import DecampError
from decamp.teardown import GuardedNode
from infra.aws.examination import Examined, examine
from infra.aws.state import read_held
from infra.config import StackConfig


def prepare(
    config: StackConfig, guarded: Sequence[GuardedNode], ask: Callable[[Sequence[GuardedNode]], None]
) -> StackConfig:
    """Returns the settings completed by the account's answers, after saying what the stack will cost.

    Args:
        config: settings of the target aws.
        guarded: nodes with a guard in the stack's state.
        ask: raises for nodes that must stay.

    Raises:
        DecampError: wrong settings, no credentials, or a node whose instance is gone and that nobody has given up.
    """
    assert config.aws is not None
    stack, now = pulumi.get_stack(), datetime.now(timezone.utc)
    account = Account(config.aws.region, config.aws.profile)
    examined = examine(stack, config, account, read_held(stack, Path.cwd()), now)
    pulumi.log.info(examined.estimate.describe([node.deadline for node in examined.config.nodes], now))
    if examined.efa:
        pulumi.log.info(examined.efa)
    if config.aws.purchase.option == "spot":
        pulumi.log.warn(
            "spot: EC2 has no termination protection for these nodes and takes them back with two minutes' notice;"
            " evacuate often: what is not in the store by then is lost"
        )
    ask_vanished(examined, guarded, ask)
    return examined.config


def ask_vanished(
    examined: Examined, guarded: Sequence[GuardedNode], ask: Callable[[Sequence[GuardedNode]], None]
) -> None:
    """Returns when no instance would be started in place of one that ended by itself, or its guard has agreed.

    Spot, the end of a block and the console end an instance without asking anybody. The engine would start the new
    one first and ask the old one's guard after.

    Raises:
        DecampError: a guard says no, and this is not a preview.
    """
    gone = [node for node in guarded if node.target == "aws" and node.name in examined.vanished]
    if not gone:
        return
    try:
        ask(gone)
    except DecampError as refusal:
        if not pulumi.runtime.is_dry_run():
            raise
        pulumi.log.warn(f"an up would be refused: {refusal}")
