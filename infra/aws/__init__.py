"""The AWS target's parts: settings and checks that cost nothing to load, and components that load pulumi-aws."""
