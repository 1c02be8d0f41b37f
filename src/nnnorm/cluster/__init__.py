"""One bias from many processes: a gallery in shards, valued by any number of workers.

    settle ──► FOLDER/job.safetensors, bank.npy        once: the bank, k, α, centre, lists
                    │
      ┌─────────────┼─────────────┐
    work 1/n      work 2/n  …   work n/n               any order, any machine, any number of times
      └─────────────┼─────────────┘
                    ▼
    FOLDER/part-00001-of-00016.safetensors, …          written whole or not at all
                    │
                  merge ──► Bias                       equal to Method.fit of the whole gallery

Items are the queries of this join, and the bank fits on every worker, so that it is a map over rows
of the gallery without a shuffle. What depends on the whole gallery or the whole bank is settled
once and stored; the value of an item then follows from the item and the job alone.

    settle(gallery, references, method, folder=…, **options) -> Job
        Takes the arguments of `Method.fit`. Where the folder holds a job already, it is loaded and
        compared: another bank, method or gallery is refused.
    Job.load(folder) -> Job
        A settled job, without its gallery being read.
    job.value(rows, first_row=None) -> Part, with values of shape (n_rows,), float32
        The values of some rows (an array, a path or `Embeddings`), wherever they come from. Engines
        call this: it reads nothing but the job, and it is the same on every worker. The rows are
        those of the gallery or later ones; `job.open_rows(start, stop)` reads those of the gallery.
    job.work(Share(number, n_shares)) -> Worked
        Value the rows of one share and write its part; a part that is there is left as it is.
    job.save_part(share, part), job.missing(n_shares) -> list of Share
        For engines whose workers return parts: what is left to do, and where a part goes.
    fit_on_ray(job, n_shares) -> Bias
        Compute what is missing on a Ray cluster, and join all parts.
    merge(folder) -> Bias
        Check that every row is there exactly once, and join the parts.

A job may be pickled, and a worker should keep it between calls: it holds the bank, and the lists of
approximate solvers are sorted when they are first used.
"""

from nnnorm.cluster.calibration import Sizes, measure_rates
from nnnorm.cluster.job import Job, Worked, merge
from nnnorm.cluster.parts import Part
from nnnorm.cluster.planning import (
    DEFAULT_RESIDUAL,
    DEFAULT_TFLOPS,
    Line,
    Machines,
    Plan,
    Rates,
    Way,
    Workload,
    describe_bytes,
    describe_duration,
    enough_share,
    make_plan,
    sampling_residual,
)
from nnnorm.cluster.ray import fit_on_ray
from nnnorm.cluster.serving import (
    BiasTable,
    ShardMove,
    TableShard,
    find_moved,
    open_table,
    refresh_table,
    vespa_updates,
    write_table,
)
from nnnorm.cluster.settling import settle
from nnnorm.io import Share
