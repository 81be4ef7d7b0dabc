"""The files that `tpudet evaluate` writes: their names, and the metrics among them."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from tpudet.trainkit.config.find import run_config
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.claims import Claim, ClaimError, claim_beside
from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.files.storage import is_remote, read_text, reason, whole_file

_ADVICE = "Name another folder for the results with --output"


class ResultFiles(NamedTuple):
    """The files of one evaluation; those of another data set or run have other names."""

    path: str  # without their endings
    title: str  # of the report
    facts: Mapping[str, Any]  # what was evaluated, for the file of the metrics
    is_elsewhere: bool  # than in the model_dir, where no other run has results

    def write_metrics(self, evaluate: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
        """Evaluates, and writes the metrics to `<path>.json`; returns them.

        The file is opened before the evaluation, so that a folder that cannot be written, as that
        of a run in a read-only place, costs no evaluation. A claim keeps the metrics and the files
        that `evaluate` writes of one evaluation.

        Args:
            evaluate: returns the metrics, and may write more files.

        Raises:
            ClaimError: another process writes these files, or has taken them over.
            UserError: the file cannot be written, or is that of another run.
        """
        path = f"{self.path}.json"
        with ExitStack() as stack:
            try:
                claim = stack.enter_context(Claim(claim_beside(self.path), output=path))
                self._refuse_other_run()
                file = stack.enter_context(whole_file(path, "w"))
            except ClaimError:
                raise
            except UserError as error:
                raise UserError(f"{error}. {_ADVICE}") from error
            except OSError as error:
                raise UserError(f"{path} cannot be written: {reason(error)}. {_ADVICE}") from error
            metrics = evaluate()
            file.write(json.dumps({**self.facts, **metrics}, indent=2) + "\n")
            claim.verify()
        return metrics

    def _refuse_other_run(self) -> None:
        """Raises where the results of another run of the same name would be replaced."""
        text = read_text(f"{self.path}.json") if self.is_elsewhere else None
        try:
            found = parse_json(text or "{}")
        except ValueError:
            found = None
        other = found.get("model_dir", "") if isinstance(found, dict) else ""
        if found != {} and other != self.facts["model_dir"]:
            raise UserError(f"{self.path}.json has results of another run, {other or 'unnamed'}")


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
        output: folder of the results, created if needed, where the name of the run is in the path;
            empty means the model_dir.
    """
    data, split = config.data.directory, config.data.eval_split
    name, own = map(_name, (data, load_config(run_config(model_dir)).data.directory))
    other = "" if name == own else f"{name}_"
    folder = output.rstrip("/") or model_dir
    is_elsewhere = _real_path(folder) != _real_path(model_dir)
    run = f"{_name(model_dir)}_" if is_elsewhere else ""
    return ResultFiles(
        path=f"{folder}/evaluation_{run}{other}{split}_{step}",
        title=f"{_name(model_dir)} on {name}, step {step}",
        facts={"model_dir": _real_path(model_dir), "data": data, "split": split, "step": step},
        is_elsewhere=is_elsewhere,
    )


def _real_path(directory: str) -> str:
    return directory.rstrip("/") if is_remote(directory) else os.path.realpath(directory)


def _name(directory: str) -> str:
    return os.path.basename(directory.rstrip("/"))
