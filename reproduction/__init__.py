"""The paper's tables and figures, measured again on the public API of nnnorm.

Not part of the wheel: run it from a checkout with `python -m reproduction`. See README.md.
"""
