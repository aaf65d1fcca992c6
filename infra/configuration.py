"""With `decamp:configure` an up ends with configured nodes, or says which task of site.yml failed on which node."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi

from infra.config import StackConfig
from infra.nodes import Node


def configure_nodes(nodes: Sequence[Node], config: StackConfig) -> list[pulumi.Resource]:
    raise NotImplementedError
