"""Decamp: nothing is destroyed until everything worth keeping is proven to be elsewhere."""

__version__ = "0.1.0"
