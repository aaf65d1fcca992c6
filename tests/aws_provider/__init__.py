"""A stand-in for AWS and for Pulumi's AWS provider, for tests alone; nothing here is found by a user's run."""
