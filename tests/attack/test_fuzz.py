"""A few hundred attacks of the fuzzer, the same in every run; `make fuzz` runs 5,000."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack import commands
from tests.attack.fuzz import CLASSES, GOOD, Attack, Fuzzer, _leftovers, attack_all, tabulate
from tests.attack.sandbox import ROOT

sandboxed = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks, with limits of Linux"),
]
# Side by side they take as long as one of them.
PARTS = {
    "search": ["fit", "search", "info", "extend", "drift"],
    "studies": ["check", "evaluate", "tune", "compare"],
    "tables": ["bank", "audit", "dataset"],
}


def shown(results):
    lines = [
        f"{one.kind}: nnnorm {one.attack.command} {shlex.join(one.attack.arguments)} "
        f"({one.attack.damage.what}): {one.said}"
        for one in results
        if one.kind not in GOOD
    ]
    return "\n".join(lines)


def test_every_option_that_takes_a_file_is_attacked():
    assert not commands.unknown_options()


def test_every_input_file_of_every_command_is_in_one_of_its_lines():
    for command in commands.walk_commands().values():
        for option in command.options:
            if option.flag and option.name in commands.FILES:
                assert any(option.flag in line for line in command.lines), option


@pytest.mark.parametrize("end", ["", "/", "//"])
def test_a_version_that_a_delete_has_replaced_is_not_missed(end):
    attack = Attack(0, "index delete", [f"faiss:photos{end}", "--ids", "ids.json"])
    before, after = {"photos/v1/index": "a", "ids.json": "b"}, {"photos/v2/index": "a"}
    assert _leftovers(attack, before, after, True) == ["ids.json is gone"]


@pytest.mark.parametrize("part", [pytest.param(part, marks=sandboxed) for part in [*PARTS, "rest"]])
def test_damaged_inputs_are_refused_in_one_sentence_or_accepted_rightly(tmp_path, part):
    every = [name for name in commands.walk_commands() if name not in commands.SLOW]
    listed = {name for names in PARTS.values() for name in names}
    only = PARTS.get(part) or [name for name in every if name not in listed]
    with Fuzzer(tmp_path / "attacks", only=only, slow=False) as fuzzer:
        assert not fuzzer.prepare()
        results = attack_all(fuzzer, 75)
    assert not shown(results)
    assert {one.kind for one in results} >= {"clean", "accepted"}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faulty") / "attacks"
    with Fuzzer(folder, only=["info"], slow=False) as fuzzer:
        assert not fuzzer.prepare()
        yield fuzzer


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=sandboxed) for fault in CLASSES if fault not in GOOD],
)
def test_the_fuzzer_finds_a_fault_of_every_class(faulty, tmp_path, fault):
    faulty.planted = fault
    faulty._boxes[0].limits["wall"] = 2 if fault == "hang" else 300
    runs = {"hang": 2, "memory": 4, "silent": 300, "refused": 300}.get(fault, 40)
    results = attack_all(faulty, runs, keep=tmp_path / "kept", until=fault)
    found = [one for one in results if one.kind == fault]
    assert found
    assert fault in tabulate(results)
    assert (Path(found[0].folder) / "ATTACK.txt").read_text().startswith("cd ")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks, with limits of Linux")
def test_the_fuzzer_finds_an_index_that_a_refused_command_has_changed(tmp_path):
    with Fuzzer(tmp_path / "attacks", only=["index delete"], slow=False) as fuzzer:
        assert not fuzzer.prepare()
        fuzzer.planted = "half_done"
        results = attack_all(fuzzer, 40, until="leftovers")
    assert "the index answers otherwise than before" in shown(results)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks, with limits of Linux")
def test_a_log_that_is_added_to_a_bank_is_compared_with_the_same_bank(tmp_path):
    with Fuzzer(tmp_path / "attacks", seed=2, only=["bank"]) as fuzzer:
        assert not fuzzer.prepare()
        result = fuzzer.run(31, "bank")  # a log twice in a row
    assert result.attack.arguments[:2] == ["log.jsonl", "--add"]
    assert (result.kind, result.said) == ("accepted", "valid, other content")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks, with limits of Linux")
def test_the_command_of_the_fuzzer_counts_and_ends_well(tmp_path):
    run = [sys.executable, "-m", "tests.attack.fuzz", "--runs", "4", "--only", "info"]
    done = subprocess.run(
        [*run, "--keep", str(tmp_path / "kept")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "info: 4 attacks" in done.stdout
