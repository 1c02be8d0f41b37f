"""Integrations with LangChain, LlamaIndex, Haystack and MTEB, one file per library.

Each file needs its library, which is an extra. They store the rows of `Corrector.transform_items`
and search with those of `Corrector.transform_queries`; `vectors.py` has shared code. Importing this
loads no library.
"""
