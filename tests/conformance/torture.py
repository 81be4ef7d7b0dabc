"""Kills, damages and starves real commands, and compares their ends: `torture.py --times 100`.

Every fault happens at a random moment of a real process; then the same command is started again,
until it ends. It must end with the same bytes as an undisturbed run, and at no time may a
half-written file stand under a final name. Prints a row for each kind of fault; `--write` puts the
table between the markers of docs/restart.md. The first fault that does more ends it, with code 1.

`--times` is of SIGKILL, for each command; the other faults happen a fifth as often. `--only` takes
some commands, by the start of their names.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from faults import (
    Fault,
    Job,
    Row,
    damage_newest,
    fill_the_disk,
    kill_at_random,
    lose_a_host,
    run_undisturbed,
    terminate_at_random,
)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/restart.md"
BEGIN, END = "<!-- torture.py writes this table -->", "<!-- end of the table -->"
IMAGES, ROWS = 300, 200_000
TRAINING = {
    "data.canvas_size": "[64, 64]",
    "model.min_level": "3",
    "model.max_level": "3",
    "train.total_steps": "12",
    "train.batch_size": "4",
    "train.iterations_per_loop": "1",
    "train.log_every_steps": "1",
    "train.checkpoint_every_steps": "2",
    "train.keep_checkpoints": "2",
    "train.learning_rate.warmup_steps": "1",
    "evaluation.schedule.every_steps": "6",
    "evaluation.schedule.batch_size": "2",
    "evaluation.schedule.num_images": "1",
}


def jobs(inputs: Path) -> dict[str, Job]:
    """The commands, on the files of `sound_inputs.py`, some of them made more."""
    images = inputs / "images"
    source = ["--annotations", f"{images}/many.csv", "--images", f"{inputs}/many"]
    source += ["--classes", f"{images}/classes.csv", "--format", "open_images"]
    trained = ("model.ckpt-*", "best/*", "checkpoint", "classes.csv")
    found = [
        Job(
            f"train --backend {backend}",
            (
                *("train", "--config", "quickstart", "--backend", backend),
                *("--model_dir", "{out}/run", f"--set=data.directory={inputs}/set"),
                *(f"--set={key}={value}" for key, value in TRAINING.items()),
            ),
            tuple(f"run/{pattern}" for pattern in trained),
            "run/metrics.jsonl",
            compiled="run/compile_cache" if backend == "jax" else "",
        )
        for backend in ("jax", "tensorflow")
    ]
    found += [
        Job(
            "make_tfrecords",
            ("make_tfrecords", *source, "--split", "train", "--output", "{out}/part")
            + ("--num_shards", "20", "--workers", "2"),
            ("part/*",),
            "part/*",
        ),
        Job(
            "predict",
            ("predict", "{out}/p.pkl", f"{inputs}/saved_model", "--images", f"{inputs}/many")
            + ("--batch_size", "2", "--workers", "1"),
            ("p.pkl",),
            "*",
        ),
        Job(
            "merge_subs",
            ("merge_subs", "{out}/s.csv", f"{images}/many_a.csv", f"{images}/many_b.csv")
            + ("--method", "wbf", "--threads", "1"),
            ("s.csv",),
            "*",
        ),
    ]
    return {job.name: job for job in found}


def write_inputs(folder: Path) -> None:
    """Writes what the jobs read, from sound inputs."""
    maker = Path(__file__).with_name("sound_inputs.py")
    subprocess.run([sys.executable, str(maker), str(folder)], check=True, stdout=subprocess.DEVNULL)
    images, many = folder / "images", folder / "many"
    many.mkdir()
    header, *rows = (images / "val_boxes.csv").read_text().splitlines()
    files = {path.stem: path for path in (images / "val").glob("*.jpg")}
    boxes = [header]
    for number in range(IMAGES):
        row = rows[number % len(rows)].split(",")
        path = files.get(row[0], next(iter(files.values())))
        shutil.copy(path, many / f"{number:04d}.jpg")
        boxes.append(",".join([f"{number:04d}", *row[1:]]))
    (images / "many.csv").write_text("\n".join(boxes) + "\n")
    for name in ("a", "b"):
        header, row, *_ = (images / f"{name}.csv").read_text().splitlines()
        text = row.split(",", 1)[1]
        lines = [f"{number:06d},{text} {text}" for number in range(ROWS)]
        (images / f"many_{name}.csv").write_text("\n".join([header, *lines]) + "\n")


def torture(
    folder: Path, *, times: int, only: Sequence[str], seed: int, grace_seconds: int
) -> Iterator[Row]:
    """Yields a row for each kind of fault, as it is done."""
    inputs = folder / "inputs"
    if not inputs.exists():
        write_inputs(inputs)
    fewer = max(times // 5, 1)
    for job in jobs(inputs).values():
        if only and not job.name.startswith(tuple(only)):
            continue
        rng = random.Random(f"{seed} {job.name}")
        place = folder / job.name.replace(" ", "_").replace("--", "")
        reference = run_undisturbed(job, place)
        print(f"{job.name}: {reference.work_seconds:.1f} s of work", file=sys.stderr, flush=True)
        yield kill_at_random(job, place, reference, times=times, rng=rng)
        yield terminate_at_random(
            job, place, reference, times=fewer, rng=rng, grace_seconds=grace_seconds
        )
        if full := fill_the_disk(job, place, reference, times=fewer, rng=rng):
            yield full
        if job.name.startswith("train"):
            yield from damage_newest(job, place, reference, times=fewer, rng=rng)
        if job.name.endswith("jax"):
            yield lose_a_host(job, place, times=fewer, rng=rng)
        shutil.rmtree(place)


def format_table(rows: Sequence[Row]) -> str:
    """A row for each kind of fault, as Markdown."""
    lines = ["| fault | command | times | runs, all with the same bytes | |", "|" + "---|" * 5]
    lines += [
        f"| {row.fault} | `{row.command}` | {row.times} | {row.ends} | {row.note} |" for row in rows
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the faults; returns 1 if one did what it must not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--only", nargs="*", default=[], metavar="COMMAND")
    parser.add_argument("--seed", type=int, default=0)
    # 30 s are what Kubernetes and spot machines give; a busy machine traces a step for longer.
    parser.add_argument("--grace", type=int, default=30, metavar="SECONDS", help="after SIGTERM")
    parser.add_argument("--folder", type=Path, help="keep the files here, also the inputs")
    parser.add_argument("--write", action="store_true", help="put the table into docs/restart.md")
    arguments = parser.parse_args(argv)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="torture") as temporary:
        folder = arguments.folder or Path(temporary)
        try:
            for row in torture(
                folder,
                times=arguments.times,
                only=arguments.only,
                seed=arguments.seed,
                grace_seconds=arguments.grace,
            ):
                print(f"{row.fault}, {row.command}: {row.times} times {row.note}", flush=True)
                rows.append(row)
                if arguments.write:  # after each, as all take hours
                    _write_table(rows)
        except Fault as fault:
            print(f"FAULT {fault}", file=sys.stderr)
            return 1
    print(format_table(rows))
    return 0


def _write_table(rows: Sequence[Row]) -> None:
    text = PAGE.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{format_table(rows)}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
