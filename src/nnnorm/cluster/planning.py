"""What a fit on many machines will take: arithmetic on rates that this machine has measured.

    once, on one node   gallery and bank are read and signed, some items compared with some
                        references (`check_roles`); intents found, or lists learnt
    the map             every item against the references that are used, divided by all cores
    moved               the gallery three times, when it is signed and when workers check it and
                        multiply it, and the items that are compared; the used references once per
                        node, one value per item

The cost of each phase is a line: seconds = fixed + slope · work, through two measured points. The
work is counted in scores (items × references, and for inverted lists what `count_list_scores`
says), so that the lines can be followed to sizes that no machine could measure in a few seconds.
`measure_rates` (`calibration.py`) provides the rates; nothing is timed here.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from nnnorm.approximate import choose_quality, count_list_scores
from nnnorm.copies import MOST_INTENTS
from nnnorm.errors import NNNormError, explain_arguments
from nnnorm.roles import count_checked
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET

# Residual of m_k from a random part of a bank, times √(k / (1 − share)). It hardly depends on the
# share, and is 0.5 to 2 on the real sets of benchmarks/cluster.py, by set and k.
SAMPLING_CONSTANT = 1.0
# float32 operations of a GPU per second, 10¹². Half of what data sheets say of an A100, because no
# GPU could be measured.
DEFAULT_TFLOPS = 10.0
DEFAULT_RESIDUAL = 0.1
# Beyond any machine; products of such numbers still fit a float.
_MOST = 10**15
# What every thread of a worker needs to work on strips of its own.
_THREAD_BUDGET = 64 * 2**20
# Signed once by the node that settles the job; checked and then multiplied by the workers.
_READS = 3
_HALF, _SINGLE = 2, 4  # bytes of a float16 and of a float32
_UNITS = (("years", 365 * 86400), ("days", 86400), ("h", 3600), ("min", 60), ("s", 1))


@dataclass(frozen=True)
class Workload:
    """Sizes of a fit.

    Attributes
    ----------
    n_gallery, n_references, dim, reference_k : int
    """

    n_gallery: int
    n_references: int
    dim: int
    reference_k: int

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            _check_count(name, value)
        if self.reference_k > self.n_references:
            raise NNNormError(
                f"reference_k must be at most n_references, {self.n_references:,}; got "
                f"{self.reference_k:,}"
            )


@dataclass(frozen=True)
class Machines:
    """The machines that share the work.

    Attributes
    ----------
    nodes : int
    cores, gpus : int
        Per node.
    gpu_tflops : float
        float32 multiply-adds and sums per second and GPU, in 10¹².
    """

    nodes: int = 1
    cores: int = 1
    gpus: int = 0
    gpu_tflops: float = DEFAULT_TFLOPS

    def __post_init__(self) -> None:
        _check_count("nodes", self.nodes)
        _check_count("cores", self.cores)
        _check_count("gpus", self.gpus, least=0)
        if not (math.isfinite(self.gpu_tflops) and self.gpu_tflops > 0):
            raise NNNormError(f"gpu_tflops must be a positive number; got {self.gpu_tflops!r}")

    @property
    def all_cores(self) -> int:
        """Cores of all nodes."""
        return self.nodes * self.cores


@dataclass(frozen=True)
class Line:
    """Seconds of some work: ``fixed + slope · work``.

    Attributes
    ----------
    fixed, slope : float
    """

    fixed: float
    slope: float

    def at(self, work: float) -> float:
        """Seconds of this much work."""
        return self.fixed + self.slope * work

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> "Line":
        """The line through two points ``(work, seconds)``; neither of its numbers is negative.

        Examples
        --------
        >>> Line.through([(10, 3.0), (30, 7.0)])
        Line(fixed=1.0, slope=0.2)
        """
        (work, seconds), (more, longer) = sorted(points)
        slope = max((longer - seconds) / (more - work), 0.0)
        fixed = seconds - slope * work
        if fixed < 0 or slope == 0:  # a noisy clock: the larger measurement alone decides
            fixed, slope = 0.0, longer / more
        return cls(fixed, slope)


@dataclass(frozen=True)
class Rates:
    """Seconds of one core of the machine that was measured.

    Attributes
    ----------
    exact : Line
        Per item, by number of references.
    learn : Line
        Of learning inverted lists, by number of scores.
    probe : Line
        Per item, by number of scores.
    read, sign : float
        Per byte of embeddings: of reading and checking them, and of their fingerprint besides. The
        latter is computed by one core.
    intent : float
        Per reference, of finding the intents of a bank.
    width : float
        Share of the dimensions that the approximate solver keeps in its lists.
    cores : int
        Cores that were measured. Intents are found and lists learnt by as many.
    """

    exact: Line
    learn: Line
    probe: Line
    read: float
    sign: float
    intent: float
    width: float
    cores: int


@dataclass(frozen=True)
class Way:
    """One way of computing the bias, and its cost.

    Attributes
    ----------
    name : str
        "exact", "approximate", "sample", "default" or "gpu".
    n_references, reference_k : int
        References that are used, and averaged per item.
    residual : float
        Expected standard deviation of the error relative to that of the values: to those of the
        whole bank, or with "default" to those of an endless bank with the same share of k.
    seconds_once : float
        Before the map, on one node.
    seconds : float
        In all.
    memory_budget : int
        Bytes to give to each worker, of which there is one per node, for all cores of it.
    worker_bytes : int
        Memory of a worker: that budget and the references that are used.
    moved_bytes : int
        Gallery, references and values over the network.
    measured : bool
        Whether measured rates are behind it; False for GPUs.
    """

    name: str
    n_references: int
    reference_k: int
    residual: float
    seconds_once: float
    seconds: float
    memory_budget: int
    worker_bytes: int
    moved_bytes: int
    measured: bool = True


@dataclass(frozen=True)
class Plan:
    """Every way for one workload on some machines.

    Attributes
    ----------
    workload : Workload
    machines : Machines
    rates : Rates
    wanted_residual : float
    enough_k : int
        Number of references to average for the wanted residual.
    ways : tuple of Way
    """

    workload: Workload
    machines: Machines
    rates: Rates
    wanted_residual: float
    enough_k: int
    ways: tuple[Way, ...]

    def way(self, name: str) -> Way:
        """The way of this name."""
        return next(way for way in self.ways if way.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON.

        In place of `memory_budget`, in bytes, ``memory_budget_mb`` is what ``--memory-budget``
        of the command line takes.
        """
        ways = [asdict(way) for way in self.ways]
        for way in ways:
            way["memory_budget_mb"] = math.ceil(way.pop("memory_budget") / 2**20)
        return {**asdict(self), "ways": ways}


@explain_arguments
def make_plan(
    workload: Workload, machines: Machines, rates: Rates, *, residual: float = DEFAULT_RESIDUAL
) -> Plan:
    """Predict time, memory and traffic of every way to compute a bias.

    Parameters
    ----------
    workload : Workload
    machines : Machines
    rates : Rates
        As `measure_rates` returns them.
    residual : float
        The error that a random part of the bank may leave, relative to the standard deviation of
        the values.

    Returns
    -------
    Plan

    Examples
    --------
    >>> line = Line(0, 1e-8)
    >>> rates = Rates(line, line, line, 1e-10, 1e-9, intent=1e-5, width=0.25, cores=2)
    >>> plan = make_plan(Workload(10**9, 10**7, 512, 128), Machines(32, 64), rates)
    >>> describe_duration(plan.way("exact").seconds)
    '14 h'
    >>> plan.way("default").n_references, plan.enough_k
    (8192, 100)
    """
    if not (math.isfinite(residual) and 0 < residual < 1):
        raise NNNormError(f"residual must be between 0 and 1; got {residual!r}")
    estimate = _Estimate(workload, machines, rates)
    ways = [estimate.exact("exact"), estimate.approximate()]
    if machines.gpus:
        ways.append(estimate.gpu())
    share = enough_share(workload.reference_k, residual)
    if MOST_INTENTS < math.ceil(share * workload.n_references) < workload.n_references:
        ways.append(estimate.exact("sample", share))
    ways.append(estimate.default())
    enough_k = math.ceil((SAMPLING_CONSTANT / residual) ** 2)
    return Plan(workload, machines, rates, residual, enough_k, tuple(ways))


def enough_share(reference_k: int, residual: float) -> float:
    """Share of a bank, drawn at random, that leaves this residual to the means of the whole bank.

    The mean of the ``share·k`` best of the share is compared with that of the k best of all. Its
    error has a standard deviation of ``c·√((1 − share) / (share·k))`` relative to that of the
    means, with the constant c of `benchmarks/cluster.py`; at least one reference is averaged.

    Examples
    --------
    >>> round(enough_share(128, 0.1), 2), enough_share(1, 0.5)
    (0.44, 1.0)
    """
    square = SAMPLING_CONSTANT**2
    return max(square / (square + reference_k * residual**2), 1 / reference_k)


def sampling_residual(reference_k: int, share: float = 0.0) -> float:
    """Residual of means of k references, drawn as a share of a bank; of an endless one by default.

    Examples
    --------
    >>> round(sampling_residual(128), 3), sampling_residual(10, 1.0)
    (0.088, 0.0)
    """
    return float(SAMPLING_CONSTANT * ((1 - share) / reference_k) ** 0.5)


def describe_duration(seconds: float) -> str:
    """Two digits and a unit.

    Examples
    --------
    >>> [describe_duration(seconds) for seconds in (0.2, 42, 5000, 3e5, 4e9)]
    ['below 1 s', '42 s', '83 min', '3.5 days', '130 years']
    """
    if seconds < 1:
        return "below 1 s"
    unit, size = next((unit, size) for unit, size in _UNITS if seconds >= 1.5 * size or size == 1)
    return f"{_two_digits(seconds / size)} {unit}"


def describe_bytes(n_bytes: float) -> str:
    """Two digits and a unit of 1,000.

    Examples
    --------
    >>> [describe_bytes(n) for n in (8_400_000, 1.02e12)]
    ['8.4 MB', '1 TB']
    """
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9)):
        if n_bytes >= 0.995 * size:
            return f"{_two_digits(n_bytes / size)} {unit}"
    return f"{_two_digits(n_bytes / 1e6)} MB"


def _two_digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):,g}" if value < 1e6 else f"{value:.1e}"


class _Estimate:
    """The costs of one workload, way by way."""

    def __init__(self, workload: Workload, machines: Machines, rates: Rates) -> None:
        self._work, self._machines, self._rates = workload, machines, rates

    def exact(self, name: str, share: float = 1.0) -> Way:
        n_references = math.ceil(share * self._work.n_references)
        k = max(1, round(share * self._work.reference_k))
        per_item = self._rates.exact.at(n_references)
        return self._way(name, n_references, k, sampling_residual(k, share), per_item)

    def approximate(self) -> Way:
        work, rates = self._work, self._rates
        quality = choose_quality(work.n_gallery)
        counted = count_list_scores(work.n_gallery, work.n_references, quality)
        # The projected references, and their sorted copy while they are sorted.
        lists = math.ceil(4 * _SINGLE * work.n_references * work.dim * rates.width)
        return self._way(
            "approximate",
            work.n_references,
            work.reference_k,
            0.44 * quality**-0.65,
            rates.probe.at(counted.probe / work.n_gallery),
            once=rates.learn.at(counted.build + counted.train),
            memory=lists,
        )

    def default(self) -> Way:
        work, rates = self._work, self._rates
        n_references = min(MOST_INTENTS, work.n_references)
        k = min(work.reference_k, n_references)
        once, per_item = rates.intent * work.n_references, rates.exact.at(n_references)
        return self._way("default", n_references, k, sampling_residual(k), per_item, once=once)

    def gpu(self) -> Way:
        """Exact means at the nominal rate, as a time of one core so that cores give it back."""
        machines, operations = self._machines, 2.0 * self._work.n_references * self._work.dim
        rate = machines.gpus * machines.gpu_tflops * 1e12 / machines.cores
        found = self._way(
            "gpu", self._work.n_references, self._work.reference_k, 0.0, operations / rate
        )
        return replace(found, measured=False)

    def _way(
        self,
        name: str,
        n_references: int,
        reference_k: int,
        residual: float,
        per_item: float,
        *,
        once: float = 0.0,
        memory: int = 0,
    ) -> Way:
        """Add what all ways have in common.

        Parameters
        ----------
        per_item : float
            Seconds of one core for the scores of one item.
        once : float
            Seconds of one core before the map, besides reading.
        memory : int
            Bytes of a worker beyond the references and what its threads need.
        """
        work, machines, rates = self._work, self._machines, self._rates
        row = work.dim * _HALF
        checked, n_sample = count_checked(work.n_gallery, work.n_references)
        once = (once + checked * rates.exact.at(n_sample)) / rates.cores
        once += (rates.read + rates.sign) * row * (work.n_gallery + work.n_references)
        once += rates.read * row * checked
        shared = work.n_gallery * (per_item + rates.read * row) / machines.all_cores
        budget = max(DEFAULT_MEMORY_BUDGET, machines.cores * _THREAD_BUDGET) + memory
        bank = n_references * work.dim * _SINGLE
        return Way(
            name=name,
            n_references=n_references,
            reference_k=reference_k,
            residual=residual,
            seconds_once=once,
            seconds=once + shared,
            memory_budget=budget,
            worker_bytes=bank + budget,
            moved_bytes=_READS * row * work.n_gallery
            + row * checked
            + _SINGLE * work.n_gallery
            + machines.nodes * bank,
        )


def _check_count(name: str, value: int, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise NNNormError(f"{name} must be a whole number of at least {least}; got {value!r}")
    if value > _MOST:
        raise NNNormError(f"{name} must be at most {_MOST:,}; got {value:.3g}")
