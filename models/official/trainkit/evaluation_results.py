"""The files that `tpudet evaluate` writes: their names, and the metrics among them."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from tpudet.trainkit.config.find import run_config
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.storage import make_folder, reason, whole_file


class ResultFiles(NamedTuple):
    """The files of one evaluation; those of another data set have other names."""

    path: str  # without their endings
    title: str  # of the report
    facts: Mapping[str, Any]  # of what the metrics are, for their file

    def write_metrics(self, evaluate: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
        """Evaluates, and writes the metrics to `<path>.json`; returns them.

        The file is opened before the evaluation, so that a folder that cannot be written, as that
        of a run in a read-only place, costs no evaluation.

        Args:
            evaluate: returns the metrics, and may write more files.

        Raises:
            UserError: the file cannot be written.
        """
        with ExitStack() as stack:
            try:
                make_folder(os.path.dirname(self.path))
                file = stack.enter_context(whole_file(f"{self.path}.json", "w"))
            except OSError as error:
                raise UserError(
                    f"{self.path}.json cannot be written: {reason(error)}. Name another folder for "
                    "the results with --output"
                ) from error
            metrics = evaluate()
            file.write(json.dumps({**self.facts, **metrics}, indent=2) + "\n")
        return metrics


def result_files(
    config: Any, model_dir: str, step: int, load_config: Callable[[str], Any], output: str = ""
) -> ResultFiles:
    """Returns the files of an evaluation.

    Args:
        config: with the data set and the split that are evaluated.
        model_dir: of the run.
        step: of the checkpoint.
        load_config: reads the run's own config at a path. The name of a data set of another name
            than the run's, which may have moved, is in the path.
        output: folder of the results, created if needed; empty means the model_dir.
    """
    data, split = config.data.directory, config.data.eval_split
    name, own = map(_name, (data, load_config(run_config(model_dir)).data.directory))
    other = "" if name == own else f"{name}_"
    return ResultFiles(
        path=f"{output.rstrip('/') or model_dir}/evaluation_{other}{split}_{step}",
        title=f"{_name(model_dir)} on {name}, step {step}",
        facts={"data": data, "split": split, "step": step},
    )


def _name(directory: str) -> str:
    return os.path.basename(directory.rstrip("/"))
