"""The plan: arithmetic that follows from sizes and rates alone."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from nnnorm import NNN, NNNormError
from nnnorm.cli import app
from nnnorm.cluster import (
    Line,
    Machines,
    Rates,
    Sizes,
    Workload,
    describe_bytes,
    describe_duration,
    enough_share,
    make_plan,
    measure_rates,
    sampling_residual,
    settle,
)
from nnnorm.input_checks import count_checked
from nnnorm.io import RemotePath, Share

RATES = Rates(
    exact=Line(1e-5, 1e-8), learn=Line(0.5, 2e-8), probe=Line(1e-5, 2e-8), read=1e-9, sign=3e-9,
    intent=1e-4, width=0.25, cores=2,
)  # fmt: skip
WORK = Workload(n_gallery=10**9, n_references=10**7, dim=512, reference_k=128)
MACHINES = Machines(nodes=32, cores=64)


def plan(work=WORK, machines=MACHINES, rates=RATES, **options):
    return make_plan(work, machines, rates, **options)


def test_the_exact_time_is_that_of_all_scores_and_bytes_divided_by_all_cores():
    per_item = 1e-5 + 1e-8 * 10**7 + 1e-9 * 2 * 512
    way = plan().way("exact")
    assert way.seconds - way.seconds_once == pytest.approx(10**9 * per_item / (32 * 64))


def test_gallery_and_bank_are_read_and_signed_once_by_one_core_and_the_roles_are_checked():
    signing = 4e-9 * 2 * 512 * (10**9 + 10**7)
    n_checked, n_sample = count_checked(10**9, 10**7)
    checking = n_checked * (1e-9 * 2 * 512 + (1e-5 + 1e-8 * n_sample) / 2)
    assert plan().way("exact").seconds_once == pytest.approx(signing + checking)


def test_intents_are_found_and_lists_learnt_by_the_cores_that_were_measured():
    once = [plan(rates=replace(RATES, cores=n)) for n in (1, 4)]
    for name in ("approximate", "default"):
        both = [one.way(name).seconds_once - one.way("exact").seconds_once for one in once]
        assert both[0] == pytest.approx(4 * both[1])


@pytest.mark.parametrize("name", ["exact", "approximate", "sample", "default"])
def test_twice_the_nodes_take_half_the_time_of_the_map(name):
    one, two = (plan(machines=Machines(nodes, 64)).way(name) for nodes in (32, 64))
    shared = [way.seconds - way.seconds_once for way in (one, two)]
    assert shared[0] == pytest.approx(2 * shared[1])
    assert one.seconds_once == two.seconds_once


@pytest.mark.parametrize("name", ["exact", "approximate", "default"])
def test_twice_the_items_take_twice_the_time_of_the_map(name):
    one, two = (plan(replace(WORK, n_gallery=n)).way(name) for n in (10**9, 2 * 10**9))
    shared = [way.seconds - way.seconds_once for way in (one, two)]
    assert shared[1] == pytest.approx(2 * shared[0], rel=0.01)


def test_the_approximate_time_grows_as_the_root_of_the_bank():
    times = [plan(replace(WORK, n_references=n)).way("approximate") for n in (10**6, 4 * 10**6)]
    shared = [way.seconds - way.seconds_once for way in times]
    assert shared[1] / shared[0] == pytest.approx(2, rel=0.1)


def test_the_default_takes_the_same_map_for_any_bank():
    ways = [plan(replace(WORK, n_references=n)).way("default") for n in (10**5, 10**7)]
    assert [way.n_references for way in ways] == [8192, 8192]
    shared = [way.seconds - way.seconds_once for way in ways]
    assert shared[0] == pytest.approx(shared[1])
    once = [way.seconds_once for way in ways]
    assert once[1] - once[0] == pytest.approx((1e-4 / 2 + 4e-9 * 1024) * (10**7 - 10**5))


def test_a_bank_smaller_than_the_default_is_used_whole():
    small = plan(Workload(10**6, 500, 64, 10))
    assert small.way("default").n_references == 500
    assert "sample" not in [way.name for way in small.ways]


def test_a_random_part_that_would_be_the_whole_bank_is_left_out():
    assert [way.name for way in plan(replace(WORK, reference_k=1)).ways] == [
        "exact", "approximate", "default",
    ]  # fmt: skip


def test_what_is_moved_is_the_gallery_three_times_and_the_bank_once_per_node():
    way = plan().way("exact")
    checked = 2 * 512 * count_checked(10**9, 10**7)[0]
    assert way.moved_bytes == 10**9 * (3 * 512 * 2 + 4) + checked + 32 * 10**7 * 512 * 4


def test_a_fit_in_parts_reads_of_its_gallery_what_is_planned(tmp_path, monkeypatch):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    items, past = (np.random.default_rng(n).normal(size=(n, 16)) for n in (8000, 500))
    np.save(tmp_path / "items.npy", items.astype(np.float16))
    memory.pipe_file("/plan/items.npy", (tmp_path / "items.npy").read_bytes())
    n_bytes = []
    read = RemotePath.read
    monkeypatch.setattr(
        RemotePath, "read", lambda self, a, b: (n_bytes.append(b - a), read(self, a, b))[1]
    )
    job = settle("memory://plan/items.npy", past, NNN(8, 0.5), folder=tmp_path, normalize=True)
    for number in (1, 2):
        job.work(Share(number, 2))
    planned = plan(Workload(8000, 500, 16, 8), Machines(1, 1)).way("default").moved_bytes
    assert sum(n_bytes) == pytest.approx(planned - 8000 * 4 - 500 * 16 * 4, rel=0.1)
    memory.rm("/plan", recursive=True)


def test_a_worker_holds_the_references_that_are_used_and_what_its_threads_need():
    few, many = (plan(machines=Machines(32, cores)) for cores in (2, 64))
    assert few.way("exact").memory_budget == 512 * 2**20
    assert many.way("exact").memory_budget == 64 * 64 * 2**20
    assert few.way("exact").worker_bytes == 10**7 * 512 * 4 + 512 * 2**20
    assert few.way("default").worker_bytes == 8192 * 512 * 4 + 512 * 2**20


def test_the_lists_of_the_approximate_solver_need_memory_by_the_width_of_their_rows():
    narrow, wide = (plan(rates=replace(RATES, width=w)).way("approximate") for w in (0.25, 0.5))
    lists = 4 * 4 * 10**7 * 512 * 0.25
    assert wide.memory_budget - narrow.memory_budget == pytest.approx(lists)


def test_gpus_are_planned_only_where_there_are_some_and_never_as_measured():
    assert [way.name for way in plan().ways] == ["exact", "approximate", "sample", "default"]
    way = plan(machines=Machines(32, 64, gpus=8, gpu_tflops=20)).way("gpu")
    reading = 10**9 * 1e-9 * 2 * 512 / (32 * 64)
    products = 2 * 10**9 * 10**7 * 512 / (32 * 8 * 20e12)
    assert way.seconds - way.seconds_once == pytest.approx(products + reading)
    assert not way.measured
    assert all(way.measured for way in plan().ways)


def test_the_share_that_is_enough_leaves_just_the_wanted_residual():
    for k, wanted in [(128, 0.1), (512, 0.05), (10, 0.3)]:
        share = enough_share(k, wanted)
        assert 0 < share < 1
        assert sampling_residual(share * k, share) == pytest.approx(wanted)


def test_a_share_averages_at_least_one_reference():
    assert enough_share(4, 0.9) * 4 >= 1


def test_the_law_of_the_residual_holds_on_random_scores():
    """Items whose best scores scatter about a level of their own, drawn as a share of a bank."""
    rng = np.random.default_rng(0)
    n_items, n_bank, k = 200, 10_000, 200
    scores = rng.normal(size=(n_items, 1)) * 0.12 + rng.normal(size=(n_items, n_bank)) * 0.3

    def means(columns, best):
        return np.sort(scores[:, columns], axis=1)[:, -best:].mean(axis=1)

    whole = means(slice(None), k)
    found = {}
    for share in (0.1, 0.4):
        some = rng.permutation(n_bank)[: int(share * n_bank)]
        error = means(some, int(share * k)) - whole
        found[share] = error.std() / whole.std()
    expected = sampling_residual(0.1 * k, 0.1) / sampling_residual(0.4 * k, 0.4)
    assert found[0.1] / found[0.4] == pytest.approx(expected, rel=0.15)


def test_a_line_goes_through_its_points_and_below_zero_for_no_work():
    line = Line.through([(100, 2.0), (300, 4.0)])
    assert (line.at(100), line.at(300), line.at(0)) == (2.0, 4.0, 1.0)
    noisy = Line.through([(100, 2.0), (300, 1.0)])
    assert noisy.fixed == 0
    assert noisy.at(300) == pytest.approx(1.0)
    assert Line.through([(100, 1.0), (300, 6.0)]) == Line(0.0, 6.0 / 300)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "below 1 s"), (89, "89 s"), (91, "1.5 min"), (3600, "60 min"), (86400, "24 h"),
     (8.64e6, "100 days"), (3.2e10, "1,000 years")],
)  # fmt: skip
def test_durations_have_two_digits_and_the_largest_fitting_unit(seconds, words):
    assert describe_duration(seconds) == words


def test_bytes_have_two_digits_and_a_unit():
    assert [describe_bytes(n) for n in (5e5, 1.5e9, 2.04e12)] == ["0.5 MB", "1.5 GB", "2 TB"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_gallery": 0}, "n_gallery must be a whole number of at least 1; got 0"),
        ({"n_references": -5}, "n_references must be a whole number of at least 1; got -5"),
        ({"dim": 2.5}, "dim must be a whole number of at least 1; got 2.5"),
        ({"reference_k": 10**8}, "reference_k must be at most n_references, 10,000,000; got"),
    ],
)
def test_sizes_that_cannot_be_are_refused(changed, words):
    with pytest.raises(NNNormError, match=words):
        replace(WORK, **changed)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nodes": 0}, "nodes must be a whole number of at least 1; got 0"),
        ({"cores": -1}, "cores must be"),
        ({"gpus": -1}, "gpus must be a whole number of at least 0; got -1"),
        ({"gpu_tflops": 0.0}, "gpu_tflops must be a positive number; got 0.0"),
        ({"gpu_tflops": math.nan}, "gpu_tflops must be a positive number; got nan"),
    ],
)
def test_machines_that_cannot_be_are_refused(options, words):
    with pytest.raises(NNNormError, match=words):
        Machines(**options)


@pytest.mark.parametrize("residual", [0, 1, -0.1, math.nan, math.inf])
def test_a_residual_must_be_between_0_and_1(residual):
    with pytest.raises(NNNormError, match="residual must be between 0 and 1"):
        plan(residual=residual)


def test_a_calibration_gives_rates_of_this_machine_and_leaves_its_threads_alone(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    rates = measure_rates(16, 8, sizes=Sizes(256, (512, 1024), 4096, (8192, 16_384), 512))
    assert rates.cores == 2
    assert rates.read > 0
    assert rates.sign >= 0
    assert rates.intent >= 0
    assert 0 < rates.width <= 1
    for line in (rates.exact, rates.learn, rates.probe):
        assert line.fixed >= 0
        assert line.slope > 0


def test_rows_of_any_width_are_planned_for_without_being_made(monkeypatch):
    monkeypatch.setattr("nnnorm.cluster.calibration._MOST_DIM", 16)
    wide = measure_rates(16 * 10**9, 8, sizes=Sizes(128, (512, 1024), 512, (8192, 16_384), 64))
    for line in (wide.exact, wide.learn, wide.probe):  # nanoseconds per score at 16 dimensions
        assert line.slope > 1e-3
    assert wide.width <= 1


# --- the command ---------------------------------------------------------------------------------

LINE = "plan --gallery 1e9 --references 1e7 --dim 512 --reference-k 128 --nodes 32 --cores 64"


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr("nnnorm.cli.plan.measure_rates", lambda dim, k: RATES)

    def invoke(line):
        return CliRunner().invoke(app, line.split(), prog_name="nnnorm")

    return invoke


def test_the_command_begins_with_the_answer(run):
    result = run(LINE)
    assert result.exit_code == 0
    first = " ".join(result.output.partition("\n\n")[0].split())
    assert first.startswith("Exact: 15 h on 32 x 64 cores; approximate: 88 min")
    assert "(error about 11%)" in first
    assert "a bank of 8,192 intents: " in first
    assert "which is the default" in first
    assert "--duplicates keep" in first


def test_the_command_says_that_gpus_were_not_measured(run):
    assert "not measured" not in run(LINE).output
    assert "GPUs were not measured: 32 x 8 that do 10 TFLOPS" in run(f"{LINE} --gpus 8").output


def test_the_command_gives_json(run):
    found = json.loads(run(f"{LINE} --gpus 8 --json").output)
    assert found["workload"] == {
        "n_gallery": 10**9, "n_references": 10**7, "dim": 512, "reference_k": 128,
    }  # fmt: skip
    assert [way["name"] for way in found["ways"]] == [
        "exact", "approximate", "gpu", "sample", "default",
    ]  # fmt: skip
    assert found["rates"]["exact"] == {"fixed": 1e-5, "slope": 1e-8}


def test_the_memory_budget_in_json_is_the_number_that_the_option_takes(run):
    for way in json.loads(run(f"{LINE} --json").output)["ways"]:
        assert way["memory_budget_mb"] * 2**20 == pytest.approx(
            plan().way(way["name"]).memory_budget, abs=2**20
        )
        assert "memory_budget" not in way


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_fits_the_terminal(run, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert max(map(len, run(LINE).output.splitlines())) <= width


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ("--gallery -5", 1, "n_gallery must be a whole number of at least 1; got -5"),
        ("--gallery 0", 1, "n_gallery must be a whole number of at least 1; got 0"),
        ("--dim 2.5", 1, "--dim must be a whole number; got 2.5"),
        ("--references inf", 1, "--references must be a whole number; got inf"),
        ("--references nan", 1, "--references must be a whole number; got nan"),
        ("--reference-k 1e8", 1, "reference_k must be at most n_references, 10,000,000; got"),
        ("--gpus -1", 1, "gpus must be a whole number of at least 0; got -1"),
        ("--gpu-tflops 0", 1, "gpu_tflops must be a positive number; got 0.0"),
        ("--residual 2", 1, "--residual must be between 0 and 1; got 2.0"),
        ("--gallery many", 2, "'many' is not a number"),
        ("--cores 1e400", 1, "--cores must be a whole number; got 1e400"),
    ],
)
def test_arguments_that_cannot_be_get_one_sentence(run, changed, code, words):
    result = run(f"{LINE} {changed}")
    assert result.exit_code == code
    assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
