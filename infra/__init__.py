"""The stack: what `pulumi up` declares, one target a file, one guard a node."""
