"""Source files as syntax trees, each parsed once for all tests that read it."""

import ast
import functools


@functools.cache
def read_tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))
