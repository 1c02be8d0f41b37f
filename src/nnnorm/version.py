"""The version, where the build and every saved file find it."""

__version__ = "1.0.0rc1"
