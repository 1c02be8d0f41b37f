"""The version, for the build and for saved files."""

__version__ = "1.0.0rc1"
