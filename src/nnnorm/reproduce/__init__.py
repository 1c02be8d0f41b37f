"""The paper's tables, one by one: what each cell measures, what the paper prints, what we find.

`paper.json` describes every cell as an experiment (model, data set, direction, bank, method,
metric) beside the printed figure. `material.py` finds the embeddings, `standins.py` takes others in
their place, `run.py` measures, `tables.py` shows both side by side.
"""

from nnnorm.reproduce.paper import find_tables, load_paper
from nnnorm.reproduce.run import Runner, run_table

__all__ = ["Runner", "find_tables", "load_paper", "run_table"]
