"""The version, where the build and every saved file find it."""

__version__ = "0.2.0.dev0"
