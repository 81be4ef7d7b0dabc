"""Shows where the processor time of `tpudet train` goes until its first steps are done.

    .venv/bin/python benchmarks/start_up.py --config quickstart --data_dir converted/sample

Prints processor seconds, over all threads, of each phase in its order: other load on the machine
changes them little. The config is trained for four steps in a temporary folder, without evaluation.
"""

import argparse
import functools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any


class Laps:
    """Prints the processor time since the lap before."""

    def __init__(self) -> None:
        self._last = time.process_time()

    def end(self, phase: str) -> None:
        """Ends a phase."""
        now = time.process_time()
        print(f"{now - self._last:8.2f} s  {phase}", flush=True)
        self._last = now

    def around(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        """Returns the function as a phase; what came before it is one, too."""

        @functools.wraps(function)
        def timed(*args: Any, **settings: Any) -> Any:
            self.end(f"until: {phase}")
            result = function(*args, **settings)
            self.end(phase)
            return result

        return timed


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--config", default="quickstart")
    parser.add_argument("--data_dir", required=True)
    arguments = parser.parse_args(argv)
    laps = Laps()
    from tpudet.cli import leave_out_imports

    leave_out_imports("train", [])
    import tensorflow as tf

    tf.constant(0.0)  # its modules are imported when they are used
    laps.end("import TensorFlow")
    from tpudet.detection import build_detector, experiment
    from tpudet.detection.commands import train
    from tpudet.trainkit.training.tensorflow_engine import TensorFlowEngine

    laps.end(f"import Keras and {experiment.__name__}")
    engine: Any = TensorFlowEngine
    builder: Any = build_detector
    builder.build_task = laps.around(builder.build_task, "build the model and its variables")
    engine.__init__ = laps.around(engine.__init__, "optimizer slots and averages")
    engine._start_input = laps.around(engine._start_input, "build the input")
    take = engine.train

    def first_traced(self: Any, num_steps: int) -> Any:
        if self._iterator is None:
            self._iterator = self._start_input()
            steps = tf.constant(num_steps, tf.int64)
            self._run_steps.get_concrete_function(self._iterator, steps)
            laps.end("trace the step")
        report = take(self, num_steps)
        laps.end(f"{report.steps_done} step(s), the first with the graph's optimisation")
        return report

    engine.train = first_traced
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--config", arguments.config, "--model_dir", f"{folder}/run", "--mode", "train"]
        sets = [f"data.directory={arguments.data_dir}", "train.total_steps=4"]
        code = train.main([*flags, *(word for value in sets for word in ("--set", value))])
        laps.end("write the checkpoint")
    return code


if __name__ == "__main__":
    sys.exit(main())
