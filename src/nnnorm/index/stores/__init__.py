"""One file per engine; each imports its library when a collection is opened."""

__all__: list[str] = []
