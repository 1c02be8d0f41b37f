"""The correction in libraries that stand above the engines, one file per library.

Each file needs a library that is an extra and is imported by its own name: `langchain`,
`llama_index`, `haystack` and `mteb`. All of them store what `Corrector.items` returns and ask what
`Corrector.queries` returns; `vectors.py` is what they share. Importing this loads no library.
"""
