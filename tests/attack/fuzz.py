"""The fuzzer: seeded damage to every kind of input of every command, and the results.

    python -m tests.attack.fuzz                 # 5,000 attacks, a table, exit code 1 on a failure
    python -m tests.attack.fuzz --only "index search" --runs 300 --seed 7

Every attack is one command with one damaged input (a file, a name, an option, a URL or an output),
in a folder of its own. It ends in one of the classes below; the first three are right. The folder
of a failure is kept, with the command that repeats it.
"""

import argparse
import hashlib
import json
import math
import os
import random
import re
import shlex
import shutil
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue

from nnnorm.index import ENGINES
from tests.attack import commands, materials, mutations
from tests.attack.mutations import Damage
from tests.attack.sandbox import MOST_MEMORY, Sandbox

GOOD = ("clean", "accepted", "engine")
CLASSES = {
    "clean": "one sentence, exit code 1 or 2, nothing written",
    "accepted": "a valid input after all: the answer is that of a clean file of this content",
    "engine": "an engine crashed or failed on its own damaged database, which can't be checked",
    "traceback": "an error that was not foreseen",
    "crash": "the process was killed by a signal",
    "hang": "more time than its limit",
    "memory": "more memory than its limit",
    "silent": "an answer from an input that is broken",
    "refused": "a valid input that was not accepted",
    "leftovers": "files that were not asked for, or an input that was changed",
    "unclear": "no sentence, or not one sentence",
}
_DATABASES = [name for name in ENGINES if name not in materials.LOCAL]  # without checksums
_TIMES = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00|Z)?"
    r'|"(model_)?(seconds|share)": [\d.]+'
)
_MODELS = "transformers.models"
_FOR_ENCODING = (
    "torch", "soundfile", "PIL.Image", f"{_MODELS}.clip.modeling_clip",
    f"{_MODELS}.clap.modeling_clap", f"{_MODELS}.clip.image_processing_clip",
    "nnnorm.encoders.huggingface",
)  # fmt: skip
# They tell broken rows from the others, which they take.
_JUDGES = ("scan", "index add")
_EXIT_CODES = {"drift": (0, 3, 4), "scan": (0, 3)}


@dataclass
class Attack:
    """One command with one damaged input."""

    number: int
    command: str
    arguments: list[str]
    place: int | None = None  # which of the arguments is damaged
    way: str = "file"
    damage: Damage = field(default_factory=lambda: Damage("nothing", "accept"))


@dataclass(frozen=True)
class Result:
    """An attack, and its class."""

    attack: Attack
    kind: str
    said: str
    folder: str | None = None


class Fuzzer:
    """Attacks on healthy materials, which are made once in a folder.

    `only` names commands; without `slow`, commands and engines that take seconds are left out. A
    command that takes more than `wall` seconds counts as one that hangs.
    """

    def __init__(self, folder, *, seed=0, only=(), slow=True, wall=300, jobs=1):
        self.folder, self.seed, self.slow = Path(folder), seed, slow
        self.commands = commands.walk_commands()
        self.names = [
            name
            for name in self.commands
            if (not only or name in only) and (slow or name not in commands.SLOW)
            if self._lines(name)
        ]
        self.healthy = self.folder / "healthy"
        self._boxes = [Sandbox(wall=wall) for _ in range(jobs)]
        self._free = Queue()
        for box in self._boxes:
            self._free.put(box)
        self._encoding = None
        if "encode" in self.names:  # its libraries take seconds to import
            self._encoding = Sandbox(wall=wall, preload=_FOR_ENCODING)
        self._lock, self._encoding_lock = threading.Lock(), threading.Lock()
        self._baselines = {}
        self.planted = None  # a fault, to see that it is found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for box in filter(None, (*self._boxes, self._encoding)):
            box.__exit__()

    @contextmanager
    def _box(self, name):
        """A server that is free, and knows what a command needs."""
        if name == "encode":
            with self._encoding_lock:
                yield self._encoding
            return
        box = self._free.get()
        try:
            yield box
        finally:
            self._free.put(box)

    def prepare(self):
        """Make the materials, and see that every line works with them."""
        self.healthy.mkdir(parents=True)
        box, root = self._boxes[0], str(self.healthy)
        module = "tests.attack.materials"
        box.call(module, "make_all", root)
        words = [word for name in self.names for line in self._lines(name) for word in line]
        for engine in (*materials.ENGINES, *materials.SERVERS):
            if materials.url_of(engine) in words:
                box.call(module, "make_index", root, engine)
            if materials.living_url_of(engine) in words:
                box.call(module, "make_living", root, engine)
        if materials.APPLICATION in words:
            box.call(module, "make_application", root)
        if "encode" in self.names:
            box.call(module, "make_model", root)
        broken = []
        for name in self.names:
            for line in self._lines(name):
                with self._box(name) as free:
                    done, _ = self._baseline(free, name, line)
                if done.code not in _EXIT_CODES.get(name, (0,)):
                    broken.append(f"nnnorm {name} {shlex.join(line)}: {done.err[-300:]}")
        return broken

    def _lines(self, name):
        lines = self.commands[name].lines
        if self.slow:
            return lines
        slow = (":index-lancedb", ":index-qdrant", ":index-chroma", ":index-milvus", "duckdb:")
        return [line for line in lines if not any(s in word for s in slow for word in line)]

    # --- making attacks ---

    def plan(self, runs):
        """Attack numbers with their commands: each as often, but slow ones seldom."""
        quick = [name for name in self.names if name not in commands.SLOW]
        slow = [name for name in self.names if name in commands.SLOW]
        if not (quick and slow):
            return [(number, self.names[number % len(self.names)]) for number in range(runs)]
        turns = [(slow, n // 50) if n % 50 == 49 else (quick, n) for n in range(runs)]
        return [(number, some[turn % len(some)]) for number, (some, turn) in enumerate(turns)]

    def make(self, number, name, folder):
        """Make an attack, with its damaged input in a folder."""
        rng = random.Random(f"{self.seed} {number} {name}")
        line = list(rng.choice(self._lines(name)))
        attack = Attack(number, name, line)
        inputs = [place for place, word in enumerate(line) if self._find(word)]
        for place in inputs:
            for path in self._find(line[place]):
                _copy(path, folder / path.name)
        if name in ("dataset", "encode"):
            _copy(self.healthy / "pictures", folder / "pictures")
        (folder / "loop").symlink_to("loop")
        urls = [place for place, word in enumerate(line) if _is_url(word)]
        ways = ["file"] * 12 + ["output"] + ["url"] * (2 if urls else 0)
        ways += ["option"] * (4 if self._options(name) else 1)
        attack.way = rng.choice(ways)
        if attack.way == "url":
            self._damage_url(attack, rng.choice(urls), rng)
        elif attack.way == "option":
            self._damage_option(attack, rng)
        elif attack.way == "output":
            self._damage_output(attack, rng)
        if attack.way == "file":
            if not inputs:
                attack.way = "option"
                self._damage_option(attack, rng)
            else:
                self._damage_file(attack, rng.choice(inputs), folder, rng)
        return attack

    def _find(self, word):
        """The healthy files that an argument names."""
        place = word
        if _is_url(word):
            place = word.partition(":")[2].partition("?")[0]
            return sorted(self.healthy.glob(f"{place}*")) if place.startswith("index-") else []
        place = word.rpartition("=")[2].partition(":")[0]  # NAME=FILE, FILE:COLUMN
        path = self.healthy / place
        return [path] if place not in ("", ".", "..") and path.exists() else []

    def _damage_file(self, attack, place, folder, rng):
        word = attack.arguments[place]
        attack.place = place
        healthy = rng.choice(self._find(word))
        path = folder / healthy.name
        damage = mutations.mutate(path, rng)
        must = damage.must
        if _is_url(word):
            # A file may be in the version that the command doesn't read.
            must = "database" if word.partition(":")[0] in _DATABASES else "either"
        elif healthy.is_dir() and healthy.name in ("model", "model-sounds", "sounds", "pictures"):
            must = "either"
        elif damage.name is not None:
            attack.arguments[place] = word.replace(healthy.name, damage.name)
            if attack.arguments[place].startswith("-"):
                attack.arguments[place] = f"./{damage.name}"
        attack.damage = Damage(f"{healthy.name}: {damage.what}", must, damage.name)

    def _damage_url(self, attack, place, rng):
        attack.place = place
        if rng.random() < 0.5:
            attack.arguments[place] = rng.choice(mutations.URLS)
        else:
            end = rng.choice(mutations.URL_ENDS)
            if "?" in attack.arguments[place]:
                end = end.replace("?", "&", 1)
            attack.arguments[place] += end
        attack.damage = Damage(f"URL {attack.arguments[place]!r}", "either")

    def _options(self, name):
        """Options that take a number, a text or one of several words."""
        kinds, files = ("integer", "float", "text", "choice"), {*commands.FILES, *commands.OUTPUTS}
        return [
            option
            for option in self.commands[name].options
            if option.flag and option.kind in kinds and option.name not in files
        ]

    def _damage_option(self, attack, rng):
        options = self._options(attack.command)
        if not options:
            attack.arguments.append(rng.choice(["--none", "-x", "", "\udcff", "--json=3"]))
            attack.damage = Damage(f"argument {attack.arguments[-1]!r}", "refuse")
            return
        option = rng.choice(options)
        numeric = option.kind in ("integer", "float")
        value = rng.choice(mutations.NUMBERS + ([] if numeric else mutations.TEXTS))
        _set_option(attack.arguments, option.flag, value)
        must = "either"
        if numeric and not _is_number(value, option.kind):
            must = "refuse"
        attack.damage = Damage(f"{option.flag} {value[:40]!r}", must)

    def _damage_output(self, attack, rng):
        outputs = [
            option
            for option in self.commands[attack.command].options
            if option.flag and option.name in commands.OUTPUTS
        ]
        if not outputs:
            attack.way = "file"
            return
        option = rng.choice(outputs)
        value = rng.choice(mutations.OUTPUTS)
        is_place = value in ("", ".", "..", "/") or value.startswith("/dev")
        if rng.random() < 0.4 and not is_place:
            value += ".safetensors"
        for flag in (option.flag, "-o" if option.name == "output" else option.flag):
            if flag in attack.arguments:
                attack.arguments[attack.arguments.index(flag) + 1] = value
                break
        else:
            attack.arguments += [option.flag, value]
        attack.damage = Damage(f"{option.flag} {value[:60]!r}", "either")

    # --- running them ---

    def run(self, number, name, keep=None):
        """Run an attack; the folder of a failure is moved to `keep`."""
        folder = self.folder / f"attack-{number}"
        folder.mkdir()
        with self._box(name) as box:
            attack = self.make(number, name, folder)
            before = _listing(folder)
            options = {"roomy": _is_roomy(attack), "planted": self.planted}
            done = box.run([*name.split(), *attack.arguments], folder, **options)
            kind, said = self._classify(box, attack, done, folder, before)
        kept = None
        if kind not in GOOD and keep is not None:
            kept = _keep(folder, keep, attack, kind, said, done)
        shutil.rmtree(folder, ignore_errors=True)
        return Result(attack, kind, said, kept)

    def _classify(self, box, attack, done, folder, before):
        said = _last_line(done.err) or _last_line(done.out)
        is_database = attack.damage.must == "database"
        if done.late:
            return ("engine" if is_database else "hang"), said
        if done.signal is not None or "Fatal Python error" in done.err:
            return ("engine" if is_database else "crash"), f"signal {done.signal}: {said}"
        if done.memory > MOST_MEMORY + (2**29 if _is_roomy(attack) else 0):
            return "memory", f"{done.memory / 1e9:.1f} GB"
        if "Traceback (most recent" in done.err or "this is a bug in nnnorm" in done.err:
            is_log = is_database and said.startswith("Error: ") and "a bug in nnnorm" not in said
            return ("engine" if is_log else "traceback"), said
        good = done.code in _EXIT_CODES.get(attack.command, (0,))
        after = _listing(folder)
        if changed := _leftovers(attack, before, after, good):
            return "leftovers", f"{changed[:5]} ({said})"
        if not good:
            kind, said = self._check_refusal(attack, done, said)
            if kind == "clean" and self._was_changed(box, attack, folder):
                return "leftovers", f"the index answers otherwise than before ({said})"
            return kind, said
        if attack.damage.must == "refuse":
            return "silent", said
        if "--json" in attack.arguments and (wrong := _bad_json(done.out)):
            return "silent", wrong
        if attack.damage.must == "same":
            _, expected = self._baseline(box, attack.command, attack.arguments)
            if self._answer(box, attack, done, folder) != expected:
                return "silent", "the index answers otherwise than one that is not damaged"
        if attack.damage.must == "judge":
            return self._compare(box, attack, done, folder)
        return "accepted", said

    def _answer(self, box, attack, done, folder):
        """What a command said, and where it changed an index, what that answers then."""
        if attack.command not in commands.CHANGING:
            return _plain(done.out)
        line = self._search_line(attack.arguments)
        after = box.run(["index", "search", *line], folder, roomy=_is_roomy(attack))
        return _plain(done.out) + after.out + after.err

    def _was_changed(self, box, attack, folder):
        """Whether a command that was refused has changed an index that was not damaged."""
        if attack.command not in commands.CHANGING:
            return False
        if attack.way == "url" or attack.place == 0:  # the index itself
            return False
        line = self._search_line(attack.arguments)
        _, expected = self._baseline(box, "index search", line)
        after = box.run(["index", "search", *line], folder, roomy=_is_roomy(attack))
        return _plain(after.out) != expected

    def _search_line(self, arguments):
        """A search that finds all items of an index."""
        queries = str(self.healthy / "queries.npy")
        return [arguments[0], "--queries", queries, "-k", "50", "--json"]

    def _check_refusal(self, attack, done, said):
        if attack.command == "index verify" and done.code == 1 and "Error:" not in done.err:
            return "clean", said  # the verdict is that the index differs
        if attack.damage.must == "accept":
            return "refused", said
        if done.code not in (1, 2):
            return "unclear", f"exit code {done.code}: {said}"
        sentences = [line for line in done.err.splitlines() if line.startswith("Error: ")]
        if len(sentences) != 1 and not (done.code == 2 and "Error" in done.err):
            return "unclear", done.err[-300:]
        if done.code == 1:
            rest = done.err.partition("Error: ")[2].strip()
            if "\n" in rest and "\n" not in "".join(attack.arguments):
                return "unclear", rest[:300]
        return "clean", said

    def _compare(self, box, attack, done, folder):
        """Whether an input that was accepted is valid, and was read as others read it."""
        answer = self._answer(box, attack, done, folder)
        original = self._find(attack.arguments[attack.place])
        name = attack.damage.what.partition(":")[0]
        relative = name
        if original and original[0].is_dir() and not _is_url(attack.arguments[attack.place]):
            relative = f"{attack.damage.what.partition(': ')[2].partition(': ')[0]}"
        damaged, healthy = folder / relative, self.healthy / relative
        twin = folder / f"twin{healthy.suffix}"
        module = "tests.attack.oracle"
        if healthy.suffix == ".safetensors":
            word = box.call(module, "judge_record", str(damaged), str(healthy))
        else:
            word = box.call(module, "judge", str(damaged), str(healthy), str(twin))
        if word == "broken" and relative != name:  # one of a folder, which may not be needed
            word = "same"
        if word == "broken" and attack.command in _JUDGES and "not finite" in done.out:
            return "accepted", "its broken rows are named"
        if word == "broken":
            return "silent", f"the file is broken, and was accepted: {_last_line(done.out)}"
        if word == "same":
            _, expected = self._baseline(box, attack.command, attack.arguments)
        elif word == "other":
            for path in folder.iterdir():
                if path.name.startswith("out"):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            if "--add" in attack.arguments:  # the first run has added to the bank
                shutil.copyfile(self.healthy / "bank.safetensors", folder / "bank.safetensors")
            os.replace(twin, damaged)
            if attack.command in commands.CHANGING:
                self._restore_indexes(attack.arguments, folder)
            roomy = _is_roomy(attack)
            again = box.run(attack.command.split() + attack.arguments, folder, roomy=roomy)
            if again.code != done.code:
                return "silent", f"a clean file of this content is refused: {_last_line(again.err)}"
            expected = self._answer(box, attack, again, folder)
        else:
            return "accepted", "not judged"
        if answer != expected:
            return "silent", "the answer is not that of a clean file of this content"
        return "accepted", f"valid, {word} content"

    def _restore_indexes(self, arguments, folder):
        """Put the indexes that a command changed back as they were."""
        for word in filter(_is_url, arguments):
            place = word.partition(":")[2].partition("?")[0]
            for path in folder.glob(f"{place}*") if place.startswith("index-") else ():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            for path in self._find(word):
                _copy(path, folder / path.name)

    def _baseline(self, box, name, line):
        """What a command answers to healthy inputs."""
        key = name, *line
        with self._lock:
            known = self._baselines.get(key)
        if known is None:
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            for path in self.healthy.iterdir():
                if path.name.startswith(("index-", "bank")):  # engines write while they read
                    _copy(path, folder / path.name)
                else:
                    (folder / path.name).symlink_to(path)
            attack = Attack(0, name, list(line))
            done = box.run([*name.split(), *line], folder, roomy=_is_roomy(attack))
            known = done, self._answer(box, attack, done, folder)
            shutil.rmtree(folder)
            with self._lock:
                self._baselines[key] = known
        return known


def _copy(source, target):
    if target.exists():
        return
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


def _is_url(word):
    return word.partition(":")[0] in ENGINES


def _is_roomy(attack):
    """Whether it loads engines or libraries that reserve more address space than they use."""
    words = {word.partition(":")[0] for word in attack.arguments}
    return attack.command in commands.SLOW or bool(words & {*_DATABASES} - {"sqlite"})


def _is_number(text, kind):
    try:
        value = float(text)  # 2.0 is a whole number to some versions of Typer
        return math.isfinite(value) and (kind == "float" or value.is_integer())
    except (ValueError, OverflowError):
        return False


def _set_option(arguments, flag, value):
    for known in (flag, "-k" if flag == "--k" else flag):
        if known in arguments:
            arguments[arguments.index(known) + 1] = value
            return
    arguments += [f"{flag}={value}"] if flag.startswith("--") else [flag, value]


def _listing(folder):
    """Files of a folder with their contents in short; folders do not count."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root) / name
            key = str(path.relative_to(folder))
            if path.is_symlink() or not path.is_file():
                found[key] = "special"
            else:
                found[key] = hashlib.md5(path.read_bytes()).hexdigest()
    return found


def _leftovers(attack, before, after, good):
    """Files that appeared without being asked for, and inputs that were changed."""
    engines = [word for word in attack.arguments if _is_url(word)]
    opened = [word.partition(":")[2].partition("?")[0] for word in engines]
    opened = [place.rstrip("/") for place in opened]  # "" is this folder
    wrong = []
    for name, content in after.items():
        top = name.split("/")[0]
        if any(top.startswith(place.split("/")[0]) for place in opened):
            continue  # databases write beside and inside of what they read
        if name in before:
            if before[name] != content and not (good and _names(attack, name)):
                wrong.append(f"{name} changed")
        elif not good or ".tmp" in name or not (top.startswith("out") or _names(attack, top)):
            wrong.append(f"{name} appeared")
    gone = before.keys() - after.keys()
    return wrong + [f"{name} is gone" for name in gone if name.split("/")[0] not in opened]


def _names(attack, name):
    return any(name.split("/")[0] in word for word in attack.arguments) or any(
        word.strip() in ("", ".", "-") or "\udcff" in word or word.startswith(" ")
        for word in attack.arguments
    )


def _bad_json(text):
    def refuse(constant):
        raise ValueError(f"{constant} in the answer")

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return f"the answer is no JSON: {error}"
    return None


def _plain(text):
    """An answer without what differs from run to run."""
    return _TIMES.sub("TIME", text)


def _last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _keep(folder, keep, attack, kind, said, done):
    target = Path(keep) / f"{attack.number}-{kind}"
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(folder, target)
    line = shlex.join(["python", "-m", "nnnorm", *attack.command.split(), *attack.arguments])
    text = [f"cd {shlex.quote(str(target.absolute()))} && {line}", ""]
    text += [f"damage: {attack.damage.what}", f"class: {kind} ({said})", ""]
    text += [done.out[-3000:], done.err[-6000:]]
    report = "\n".join(text).encode(errors="backslashreplace")
    (target / "ATTACK.txt").write_bytes(report)
    return str(target)


def attack_all(fuzzer, runs, *, keep=None, tell=None, until=None):
    """Run attacks on as many processes as the fuzzer has; their results in order.

    With `until`, a class, no more attacks are begun once one has ended in it.
    """
    plan, results = fuzzer.plan(runs), []
    step = len(plan) if until is None else 2 * len(fuzzer._boxes)
    with ThreadPoolExecutor(len(fuzzer._boxes)) as pool:
        for start in range(0, len(plan), step):
            some = plan[start : start + step]
            for result in pool.map(lambda one: fuzzer.run(*one, keep=keep), some):
                results.append(result)
                if tell is not None:
                    tell(result, len(results))
            if any(result.kind == until for result in results):
                break
    return results


def tabulate(results):
    """How many attacks on every command ended in which class, a line each."""
    counts = Counter((result.attack.command, result.kind) for result in results)
    lines = []
    for name in dict.fromkeys(result.attack.command for result in results):
        some = {kind: counts[name, kind] for kind in CLASSES if counts[name, kind]}
        shown = ", ".join(f"{count:,} {kind}" for kind, count in some.items())
        lines.append(f"{name}: {sum(some.values()):,} attacks, {shown}")
    return "\n".join(lines)


def main():
    """The command line of the fuzzer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", action="append", default=[], help="a command; repeatable")
    parser.add_argument("--keep", default="fuzz-failures", help="folder for failures")
    given = parser.parse_args()
    options = {"seed": given.seed, "only": given.only, "jobs": given.jobs}
    with tempfile.TemporaryDirectory() as folder, Fuzzer(folder, wall=120, **options) as fuzzer:
        if broken := fuzzer.prepare():
            sys.exit("healthy inputs are refused:\n" + "\n".join(broken))
        results = attack_all(fuzzer, given.runs, keep=given.keep, tell=_tell)
    print(tabulate(results))
    failures = [result for result in results if result.kind not in GOOD]
    for result in [*failures, *(result for result in results if result.kind == "engine")]:
        line = f"{result.kind}: nnnorm {result.attack.command} ({result.attack.damage.what}): "
        print((line + result.said).encode(errors="backslashreplace").decode())
    if failures:
        print(f"{len(failures)} failures, with the commands that repeat them, are in {given.keep}")
    sys.exit(bool(failures))


def _tell(result, done):
    if result.kind not in GOOD or done % 250 == 0:
        shown = f"{done}: {result.kind} {result.attack.command} {result.attack.damage.what[:80]}"
        text = f"{shown}: {result.said[:200]}".encode(errors="backslashreplace").decode()
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
