"""One file per engine, which imports its library when a collection is opened."""
