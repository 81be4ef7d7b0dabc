"""Plans the steps of an experiment for a TPU: compiles them, reports them, searches a batch."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.file_kinds import PLAN, write_json
from tpudet.trainkit.training import tpu_plan
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.engine import batch_faults
from tpudet.trainkit.training.tpu_compiler import (
    NoCompilerError,
    check_compiler,
    compile_steps,
    compiler_environment,
)
from tpudet.trainkit.training.tpu_machines import TpuMachine, find_machine
from tpudet.trainkit.training.tpu_plan import CompiledStep, Step

_ATTEMPTS = 3  # to confirm the largest batch; each compiles for minutes


def plan_experiment(
    arguments: argparse.Namespace, train: TrainConfig, *, process: str, num_classes: int
) -> int:
    """Plans the experiment of a command's arguments, prints what it finds and writes it to --json.

    Args:
        arguments: of `add_config_arguments` and `add_plan_arguments`.
        train: of the experiment.
        process: the module that compiles on request, see `tpu_process`.
        num_classes: of the class list.

    Returns:
        The exit code of the command.

    Raises:
        UserError: there is no such TPU, or the experiment is not usable.
    """
    machine = find_machine(arguments.tpu)
    num_devices = min(train.num_devices or machine.num_devices, machine.num_devices)
    faults = batch_faults(
        train.batch_size, num_devices=num_devices, accumulate_steps=train.accumulate_steps
    )
    if faults and arguments.steps != "evaluate":
        raise UserError(f"train.{faults[0]}")
    try:
        check_compiler()
    except NoCompilerError as error:
        print(f"tpudet plan: {error}", file=sys.stderr)
        return tpu_plan.EXIT_NO_COMPILER
    print(
        f"{arguments.config} on {machine.name}: {machine.num_chips} chip(s), {machine.num_cores} "
        f"core(s), {num_devices} device(s); batch {train.batch_size}, {num_classes} classes",
        flush=True,
    )
    planner = Planner(
        process=process,
        request={
            "config": arguments.config,
            "overrides": arguments.overrides,
            "params_override": arguments.params_override,
            "num_classes": num_classes,
            "tpu": machine.name,
        },
        machine=machine,
        num_devices=num_devices,
        accumulate_steps=train.accumulate_steps,
    )
    names = ["train", "evaluate"] if arguments.steps == "both" else [arguments.steps]
    steps, code = planner.plan(names, train.batch_size, searches=arguments.search)
    if arguments.json:
        plans = [{**step._asdict(), "tpu": machine.name} for step in steps]
        write_json(arguments.json, plans, PLAN)
    return code


class Planner:
    """Plans one experiment for one machine and prints what it finds.

    Args:
        process: the module that compiles on request, see `tpu_process`.
        request: what it needs beside the steps and the batch size.
        machine: to compile for.
        num_devices: how many of its devices take part.
        accumulate_steps: parts of what each of them gets of a batch.
    """

    def __init__(
        self,
        *,
        process: str,
        request: Mapping[str, Any],
        machine: TpuMachine,
        num_devices: int,
        accumulate_steps: int,
    ) -> None:
        self._command = [sys.executable, "-m", process]
        self._request = request
        self._machine = machine
        self._num_devices = num_devices
        self._divisor = num_devices * accumulate_steps

    def plan(
        self, steps: Sequence[str], batch_size: int, *, searches: bool
    ) -> tuple[list[Step], int]:
        """Compiles and prints the steps, then searches a batch on request or if they do not fit.

        Args:
            steps: "train", "evaluate" or both.
            batch_size: of training, over all devices.
            searches: whether to search the largest batch also where the steps fit.

        Returns:
            The steps with that of the batch found, and the exit code that they stand for.
        """
        found = self._compile(steps, batch_size)
        for step in found:
            print(f"{step.step} step, batch {step.batch_size}:")
            print(tpu_plan.describe(step, self._machine, self._num_devices), flush=True)
        code = tpu_plan.exit_code(found, self._machine)
        if found[0].step == "train" and (searches or code == tpu_plan.EXIT_DOES_NOT_FIT):
            found += self._search(found[0])
        return found, code

    def _compile(self, steps: Sequence[str], batch_size: int) -> list[Step]:
        return compile_steps(
            self._command,
            {**self._request, "steps": list(steps), "batch_size": batch_size},
            environment=compiler_environment(self._machine),
            progress=_show,
        )

    def _search(self, first: Step) -> list[Step]:
        """Prints and returns the step with the largest batch that fits, if there is one."""

        def compile_batch(batch_size: int) -> Step:
            _show(f"trying batch {batch_size}")
            return self._compile(["train"], batch_size)[0]

        best = search_batch(compile_batch, first, machine=self._machine, divisor=self._divisor)
        if best is None:
            print(f"no batch was found that fits on {self._num_devices} device(s)")
            return []
        print(f"the largest training batch that was compiled and fits is {best.batch_size}:")
        print(tpu_plan.describe(best, self._machine, self._num_devices))
        return [best]


def _show(line: str) -> None:
    print(f"... {line}", file=sys.stderr, flush=True)


def search_batch(
    compile_batch: Callable[[int], Step], first: Step, *, machine: TpuMachine, divisor: int
) -> CompiledStep | None:
    """Returns the step with the largest batch that was compiled and fits; None if none was found.

    Memory grows by a straight line with the batch, nearly: near the limit the compiler computes
    some values twice to save memory, so that a few more images may fit.

    Args:
        compile_batch: compiles the training step for a batch size over all devices.
        first: of the batch size that the config says.
        machine: with its memory.
        divisor: devices times the parts that each computes one after another. The batch is a
            multiple of it, and of 8 times it if it is that large.
    """
    points = [first, compile_batch(_other_batch(first.batch_size, divisor))]
    sizes = sorted((step.batch_size, size) for step in points if (size := _bytes(step)))
    found = [step for step in points if _fits(step, machine)]
    if len(sizes) == 2:
        unit = divisor * (8 if first.batch_size >= 16 * divisor else 1)
        batch = tpu_plan.largest_batch(*sizes, capacity=machine.memory_bytes, multiple=unit)
        tried = {step.batch_size for step in points}
        for _ in range(_ATTEMPTS):
            if batch <= 0 or batch in tried:
                break
            step = compile_batch(batch)
            if _fits(step, machine):
                found.append(step)
                break
            batch -= unit
    fitting = [step for step in found if isinstance(step, CompiledStep)]
    return max(fitting, key=lambda step: step.batch_size, default=None)


def _other_batch(batch: int, divisor: int) -> int:
    """Half of the batch, or twice as much of the smallest one."""
    half = batch // 2 // divisor * divisor
    return half or 2 * batch


def _bytes(step: Step) -> int | None:
    return step.memory_bytes if isinstance(step, CompiledStep) else step.needed_bytes


def _fits(step: Step, machine: TpuMachine) -> bool:
    return isinstance(step, CompiledStep) and step.memory_bytes <= machine.memory_bytes
