"""The correction in libraries that stand above the engines, one file per library.

Each file needs a library that is an extra and is imported by its own name: `langchain`,
`llama_index`, `haystack` and `mteb`. They store what `Corrector.transform_items` returns and search
with what `Corrector.transform_queries` returns; `vectors.py` is what they share. Importing this
loads no library.
"""
