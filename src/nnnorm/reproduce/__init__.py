"""The paper's tables: the experiment of each cell, the printed figure, and a measured one.

paper      every cell as an experiment (model, data set, bank, method, metric) with its figure
material   the embeddings that they need; `standins` has others in their place, `encode` makes them
run        measures; `runtime` is the stopwatch, `results` keeps what is finished
tables     both figures side by side, in the paper's shape
trends     what the paper says in words, in figures
sheets     what queries find, before and after
"""

from nnnorm.reproduce.encode import encode_missing, find_missing
from nnnorm.reproduce.material import EmbeddingFolder
from nnnorm.reproduce.paper import Experiment, find_fine_tuned, find_tables, load_paper
from nnnorm.reproduce.results import Results
from nnnorm.reproduce.run import Runner, run_table
from nnnorm.reproduce.sheets import draw_groups, draw_rescued
from nnnorm.reproduce.standins import open_stand_in
from nnnorm.reproduce.tables import (
    lay_out_beside_paper,
    lay_out_stand_ins,
    list_material,
    tabulate_beside_paper,
    tabulate_overview,
    tabulate_stand_ins,
)
from nnnorm.reproduce.trends import find_trends, tabulate_trends
