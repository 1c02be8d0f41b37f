"""The paper's tables: the experiment of each cell, the printed figure, and a measured one.

`paper.json` describes every cell as an experiment (model, data set, direction, bank, method,
metric) with the printed figure. `material.py` finds the embeddings, `standins.py` replaces them by
others, `run.py` measures, `tables.py` shows both figures side by side.
"""

from nnnorm.reproduce.encode import encode_missing, find_missing
from nnnorm.reproduce.material import EmbeddingFolder
from nnnorm.reproduce.paper import find_tables, load_paper
from nnnorm.reproduce.run import Runner, run_table
from nnnorm.reproduce.standins import open_stand_in
from nnnorm.reproduce.tables import (
    list_material,
    tabulate_beside_paper,
    tabulate_overview,
    tabulate_stand_ins,
)
