"""Writes docs/tpu_plans.md: what the TPU compiler says of shipped experiments.

Each plan takes minutes, so what was found is kept in docs/tpu_plans.json and only what is missing
is compiled; stopped at any time, the same command resumes. The page says which plans are missing.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tpudet.trainkit.command_line import new_parser, run_command
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training import tpu_plan
from tpudet.trainkit.training.tpu_compiler import check_compiler
from tpudet.trainkit.training.tpu_machines import GIB, TpuMachine, find_machine

DOCS = Path(__file__).parents[1] / "docs"
TPUS = ("v5e-8", "v3-8")
# From cheap to dear to compile: detectors of each backbone, neck and size, and classifiers; with a
# training batch where that of the config does not fit.
CONFIGS = (
    *("quickstart", "lite0_fpn_320", "resnet18_224", "r18_fpn_320", "resnet50_224"),
    *("effnetb0_224", "effnet_b0_fpn_512", "d0_efficientdet_512", "resnet34_224"),
    *("effnetlite0_112", "r50_fpn_640", "mask-quickstart", "demo_lite0_160"),
    *("nuclei-lite0_fpn_384@8", "lite0-512_fpn", "mask-lite0_fpn_320", "demo-masks_lite0_160"),
    *("resnet101_224", "effnetb3_300", "1.0.0", "nasfpn_r50_640"),
    *("2.0.0", "d1_efficientdet_640", "2.2.0"),
    *("b3_fpn_896", "mask-r50_fpn_1024@32"),
)
TITLE = """\
# Plans for TPUs

What `tpudet plan CONFIG --tpu NAME` says of shipped experiments with {classes} classes, written by
`make tpu-plans` ({libtpu}). The compiler is real and the machine is not: the least time is the
roofline bound, what the machine's peaks allow for the operations of a step and the bytes that it
moves from and to its memory; the estimate adds up the cycles that the compiler expects of each
operation. Images/s are over all devices. No TPU was available to measure how near a run comes.
Batches are those of the configs, or the ones shown where these do not fit the number of devices.
[tpu.md](tpu.md) says what the columns mean.

| config | TPU | step | batch | memory per device | TFLOP | GB | least ms | bound by \
| most images/s | XLA's estimate, ms | images/s by it |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""
NUM_CLASSES = 80


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("write_tpu_plans.py", __doc__)
    parser.add_argument(
        "configs",
        nargs="*",
        default=CONFIGS,
        metavar="CONFIG[@BATCH]",
        help="with a training batch, or with its own (a list)",
    )
    parser.add_argument("--tpus", nargs="+", default=TPUS, metavar="NAME", help="(v5e-8 v3-8)")
    parser.add_argument("--docs", type=Path, default=DOCS, metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--no_compile", action="store_true", help="only rewrite the page")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    store, page = arguments.docs / "tpu_plans.json", arguments.docs / "tpu_plans.md"
    plans: dict[str, list[dict[str, Any]]] = {}
    if store.exists():
        plans = json.loads(store.read_text(encoding="utf-8"))
    wanted = [(config, tpu) for config in arguments.configs for tpu in arguments.tpus]
    if not arguments.no_compile:
        check_compiler()
    for config, tpu in wanted:
        key = f"{config} {tpu}"
        if key in plans or arguments.no_compile:
            continue
        begin = time.monotonic()
        plans[key] = _plan(config, tpu)
        store.write_text(json.dumps(plans, indent=1) + "\n", encoding="utf-8")
        page.write_text(write_page(plans, wanted), encoding="utf-8")
        print(f"{key}: {time.monotonic() - begin:.0f} s", flush=True)
    page.write_text(write_page(plans, wanted), encoding="utf-8")
    return f"{page}: {len(plans)} plans, {sum(f'{c} {t}' not in plans for c, t in wanted)} missing"


def _plan(config: str, tpu: str) -> list[dict[str, Any]]:
    """Compiles a config in a process of its own; returns its steps."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        name, _, batch = config.partition("@")
        command = [sys.executable, "-m", "tpudet", "plan", name, "--tpu", tpu]
        command += ["--json", str(path), "--num_classes", str(NUM_CLASSES)]
        command += ["--set", f"train.batch_size={batch}"] if batch else []
        done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        known = (0, tpu_plan.EXIT_DOES_NOT_FIT, tpu_plan.EXIT_UNSUPPORTED)
        if done.returncode not in known:
            raise UserError(f"tpudet plan {config} --tpu {tpu} ended with {done.returncode}")
        return json.loads(path.read_text(encoding="utf-8"))


def write_page(plans: dict[str, list[dict[str, Any]]], wanted: Sequence[tuple[str, str]]) -> str:
    """Returns the page: the title, a row per step, and what is missing."""
    title = TITLE.format(classes=NUM_CLASSES, libtpu=f"libtpu {_libtpu_version()}")
    rows = [
        _row(config, step, find_machine(tpu))
        for config, tpu in (key.split() for key in plans)
        for step in plans[f"{config} {tpu}"]
    ]
    missing = [f"{config} on {tpu}" for config, tpu in wanted if f"{config} {tpu}" not in plans]
    text = title + "\n".join(rows) + "\n"
    if missing:
        text += f"\nNot compiled yet, for lack of time: {', '.join(missing)}.\n"
    return text


def _row(config: str, facts: dict[str, Any], machine: TpuMachine) -> str:
    fields = {name: value for name, value in facts.items() if name != "tpu"}
    head = [config.partition("@")[0], machine.name, fields["step"], fields["batch_size"]]
    if "flops" not in fields:
        needed = fields["needed_bytes"]
        words = f"does not fit, {needed / GIB:.1f} GiB" if needed else "does not compile"
        return f"| {' | '.join(map(str, [*head, words, *7 * '-']))} |"
    step = tpu_plan.CompiledStep(**fields)
    line = tpu_plan.roofline(step, machine)
    memory = f"{step.memory_bytes / GIB:.2f} of {machine.memory_bytes / GIB:.2f} GiB"
    cells = [*head, memory, f"{step.flops / 1e12:.3f}", f"{step.moved_bytes / 1e9:.2f}"]
    cells += [f"{line.bound * 1e3:.1f}", line.binds, f"{step.batch_size / line.bound:.0f}"]
    estimate = tpu_plan.sane_estimate(step, machine)
    cells += [f"{estimate * 1e3:.1f}", f"{step.batch_size / estimate:.0f}"] if estimate else "--"
    return f"| {' | '.join(map(str, cells))} |"


def _libtpu_version() -> str:
    try:
        return version("libtpu")
    except PackageNotFoundError:
        return "0.0.52"


if __name__ == "__main__":
    sys.exit(main())
