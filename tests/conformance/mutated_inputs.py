"""Feeds damaged files to the commands: `mutated_inputs.py FOLDER --seed 0 --count 1000`.

Each input is a file of FOLDER's sound ones, damaged by a pure function of the seed and the input's
number, in a copy of the folder that it stands in. A command gets it in a process of its own, forked
from one that has imported everything. It must print a message and exit with 2, or succeed: no
traceback, no crash, no minute without an end, no 2 GB of memory, nothing half-written.

`--only NUMBER` runs one input again and shows what the command prints; `--family NAME` runs those
of one family. Exit code 1 if there are finds.
"""

import argparse
import importlib
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from mutation_cases import CASES, FAMILIES, Case, draw_case, random_of

from tpudet.cli import GROUPS
from tpudet.cli import main as tpudet

SECONDS = 60
BYTES = 2 << 30
_MAX_ADDRESSES = 16 << 30  # protects the machine; libraries reserve more than they use
_LONGEST_MESSAGE = 20_000  # characters
# Shards that are whole stay for the next start; a manifest says that all are there.
_KEPT = re.compile(r"\.progress/|\.tfrecord$|\.offsets$|\.claim\.json$|/classes\.csv$")
_OTHER_CODES = {("check_data", 1)}  # something would be left out


class Outcome(NamedTuple):
    """How a command ended."""

    code: int  # of its exit; minus the number of the signal that ended it
    seconds: float
    peak_bytes: int
    said: str


def damage(case: Case, seed: int, number: int, base: Path) -> tuple[Path, bytes, str]:
    """The file of a case that an input damages, its damaged bytes, and how they were made."""
    rng = random_of(seed, number, "damage")
    files = sorted(path for path in base.glob(case.file) if path.is_file())
    file = rng.choice(files)
    data = file.read_bytes()
    applied = [rng.choice(case.mutations) for _ in range(rng.choice((1, 1, 1, 2)))]
    damaged = data
    for mutation in applied:
        try:
            damaged = mutation(damaged, rng)
        except (ValueError, RecursionError, struct.error):  # what is left is no JSON, or no records
            continue
    names = " then ".join(mutation.__name__.strip("_") for mutation in applied)
    return file.relative_to(base), damaged, names


def run_input(seed: int, number: int, base: Path, work: Path) -> tuple[str, Outcome, list[str]]:
    """Runs one input; returns its description, its outcome and what is wrong with it."""
    case = draw_case(seed, number)
    file, damaged, names = damage(case, seed, number, base)
    shutil.rmtree(work, ignore_errors=True)
    inputs, out = work / "in", work / "out"
    out.mkdir(parents=True)
    shutil.copytree(base, inputs, symlinks=True)
    (inputs / file).write_bytes(damaged)
    before = _listing(inputs)
    places = {"{in}": str(inputs), "{out}": str(out), "{file}": str(inputs / file)}
    words = case.command.split()
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    outcome = _run_forked(words, work)
    title = f"seed {seed} number {number} ({case.family}): {file} {names}: {case.command}"
    faults = _faults(case.verb, outcome, out) + [
        f"made {path}" for path in _listing(inputs) - before
    ]
    return title, outcome, faults


def _faults(verb: str, outcome: Outcome, out: Path) -> list[str]:
    faults = []
    if outcome.code not in (0, 2) and (verb, outcome.code) not in _OTHER_CODES:
        faults.append(f"exit code {outcome.code}")
    if "Traceback (most recent call last)" in outcome.said:
        faults.append("a traceback")
    if len(outcome.said) > _LONGEST_MESSAGE:
        faults.append(f"{len(outcome.said)} characters of messages")
    if outcome.code == 2 and not outcome.said.strip():
        faults.append("no message")
    if outcome.seconds > SECONDS:
        faults.append(f"{outcome.seconds:.0f} s")
    if outcome.peak_bytes > BYTES:
        faults.append(f"{outcome.peak_bytes / 2**30:.1f} GB")
    left = [path for path in _listing(out) if "temporary" in path or path.endswith(".tmp")]
    faults += [f"left {path}" for path in left]
    if outcome.code != 0:
        faults += [f"{path} after a failure" for path in _listing(out) if not _KEPT.search(path)]
    return faults


def _listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def _run_forked(words: Sequence[str], work: Path) -> Outcome:
    """Runs a command in a forked process, which ends with its whole group after `SECONDS`."""
    log = work / "log"
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _become_command(words, log, work)
    deadline = started + SECONDS + 5
    while True:
        found, status, usage = os.wait4(child, os.WNOHANG)
        if found:
            break
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(status)
    said = log.read_text(errors="replace")
    return Outcome(code, time.monotonic() - started, usage.ru_maxrss * 1024, said)


def _become_command(words: Sequence[str], log: Path, work: Path) -> None:
    """Never returns: the command's exit code is that of this process."""
    code = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_ADDRESSES, _MAX_ADDRESSES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, source in enumerate((nothing, descriptor, descriptor)):
            os.dup2(source, number)
        os.chdir(work)
        code = tpudet(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 2
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# Modules that commands import when they run: imported once, before all forks.
_IMPORTS = ("pyarrow.parquet", "pyarrow.csv", "pandas", "cv2", "tpudet.detection.submission.merge")
_HEAVY_IMPORTS = (
    *("tensorflow", "keras", "h5py", "matplotlib.pyplot", "tpudet.detection.experiment"),
    *("tpudet.detection.inference.predict", "tpudet.detection.preparation.records.convert"),
    *("tpudet.trainkit.weights.read", "tpudet.classification.preparation.write_records"),
)
_HEAVY_VERBS = {
    *(
        "check_data",
        "make_tfrecords",
        "images_to_tfrecords",
        "predict",
        "export",
        "train",
        "show_augmented",
    ),
    *("describe_dataset", "export_annotations", "list_checkpoint", "plot_schedule"),
}


def import_commands(verbs: set[str]) -> None:
    """Imports what these commands need, and TensorFlow only if one does; starts no thread."""
    modules = [f"tpudet.{_task(verb)}.commands.{verb}" for verb in sorted(verbs)]
    for module in (*_IMPORTS, *(_HEAVY_IMPORTS if verbs & _HEAVY_VERBS else ()), *modules):
        importlib.import_module(module)


def _task(verb: str) -> str:
    return "classification" if verb in GROUPS["Classify images"] else "detection"


def run_all(
    base: Path,
    *,
    seed: int,
    numbers: Sequence[int],
    show: bool,
    report: Callable[[str], None],
) -> int:
    """Runs inputs; returns how many have faults."""
    codes: Counter[int] = Counter()
    finds, started, most = 0, time.monotonic(), 0
    for done, number in enumerate(numbers, start=1):
        work = base.parent / f"run_{os.getpid()}"
        title, outcome, faults = run_input(seed, number, base, work)
        codes[outcome.code] += 1
        most = max(most, outcome.peak_bytes)
        if show:
            report(f"{title}\n{outcome.said}\nexit code {outcome.code}, {outcome.seconds:.1f} s")
        if faults:
            finds += 1
            report(f"FIND {title}\n    {'; '.join(faults)}")
            report("    " + outcome.said.strip()[-1500:].replace("\n", "\n    "))
        if done % 50 == 0:
            rest = (time.monotonic() - started) / done * (len(numbers) - done)
            report(f"{done}/{len(numbers)}, {finds} finds, about {rest:.0f} s left")
        shutil.rmtree(work, ignore_errors=True)
    report(
        f"seed {seed}, {len(numbers)} inputs, {finds} finds; exit codes "
        f"{dict(sorted(codes.items()))}; {time.monotonic() - started:.0f} s, at most "
        f"{most / 2**20:.0f} MB"
    )
    return finds


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the inputs that the arguments name; returns 1 if there are finds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of sound_inputs.py; made if it does not exist")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--only", type=int)
    parser.add_argument("--family", choices=FAMILIES)
    parser.add_argument("--verb", choices=sorted({case.verb for case in CASES}))
    arguments = parser.parse_args(argv)
    base = arguments.folder.resolve()
    if not base.exists():
        maker = Path(__file__).with_name("sound_inputs.py")
        subprocess.run([sys.executable, str(maker), str(base)], check=True)
    numbers = list(range(arguments.count)) if arguments.only is None else [arguments.only]
    cases = {number: draw_case(arguments.seed, number) for number in numbers}
    if arguments.family:
        cases = {n: case for n, case in cases.items() if case.family == arguments.family}
    if arguments.verb:
        cases = {n: case for n, case in cases.items() if case.verb == arguments.verb}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import_commands({case.verb for case in cases.values()})
    finds = run_all(
        base,
        seed=arguments.seed,
        numbers=list(cases),
        show=arguments.only is not None,
        report=lambda line: print(line, flush=True),
    )
    return 1 if finds else 0


if __name__ == "__main__":
    sys.exit(main())
