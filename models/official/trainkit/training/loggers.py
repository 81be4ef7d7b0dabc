"""Loggers of a run's numbers and images: TensorBoard, Weights & Biases, MLflow.

Weights & Biases and MLflow are configured by the environment variables that they document
(WANDB_MODE, WANDB_PROJECT, MLFLOW_TRACKING_URI, ...). A run that resumes continues the same run
there: its id is kept in the model_dir. What is logged again after a restart at an earlier
checkpoint appears twice in them; the ledger has it once. A call of theirs that fails is a line in
the log: it costs no checkpoint and ends no run. Only a run that begins is refused where one of them
cannot be opened, as somebody is there to see to it.
"""

import importlib.util
import logging
import math
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.training.config import LoggerName
from tpudet.trainkit.training.run_log import (
    DiscardingWriter,
    Kind,
    MetricsWriter,
    open_tensorboard,
)

_PROJECT = "tpudet"  # of Weights & Biases, unless WANDB_PROJECT is set
_NOT_IN_MLFLOW = re.compile(r"[^\w\-. :/]")  # characters that names of metrics cannot have

logger = logging.getLogger(__name__)


def check_loggers(names: Sequence[LoggerName]) -> None:
    """Refuses loggers whose package is not installed.

    Raises:
        UserError: names all of them, and the command that installs them.
    """
    missing = [n for n in names if n != "tensorboard" and importlib.util.find_spec(n) is None]
    if missing:
        extras = ",".join(missing)
        raise UserError(
            f"train.loggers has {', '.join(missing)}, whose package is not installed: "
            f"pip install 'tpudet[{extras}]', or leave it out"
        )


def open_loggers(
    names: Sequence[LoggerName], model_dir: str, *, restored_step: int | None
) -> MetricsWriter:
    """Opens the writers of a run; what is written goes to all of them.

    Args:
        names: of the loggers, see `check_loggers`.
        model_dir: of the run; its last name is the name of the run.
        restored_step: where the run resumes; None from the beginning.

    Raises:
        UserError: a run that begins cannot be opened at a service.
    """
    writers: list[MetricsWriter] = []
    if "tensorboard" in names:
        writers.append(open_tensorboard(model_dir, restored_step=restored_step))
    for name, open_writer in (("wandb", WandbWriter), ("mlflow", MlflowWriter)):
        if name in names:
            try:
                writers.append(open_writer(model_dir))
            except Exception as error:  # of the package's choice, and of the network's
                what = f"{name} does not open the run: {type(error).__name__}: {error}"
                if restored_step is None:
                    raise UserError(
                        f"{what}. Train again once it does, or leave {name} out of train.loggers"
                    ) from error
                logger.warning("%s. The run resumes without it", what)
    if len(writers) == 1:
        return writers[0]
    return JoinedWriter(writers) if writers else DiscardingWriter()


class JoinedWriter:
    """Writes to several writers."""

    def __init__(self, writers: Sequence[MetricsWriter]) -> None:
        self._writers = tuple(writers)

    def write(self, kind: Kind, step: int, values: Mapping[str, float | np.ndarray]) -> None:
        """As in `MetricsWriter`."""
        for writer in self._writers:
            writer.write(kind, step, values)

    def close(self, *, failed: bool = False) -> None:
        """As in `MetricsWriter`."""
        with ExitStack() as closes_all:
            for writer in self._writers:
                closes_all.callback(writer.close, failed=failed)


class _Failures:
    """Logs what a service refuses, once for each kind of failure, and lets the run continue.

    Args:
        service: its name.
    """

    def __init__(self, service: str) -> None:
        self._service = service
        self._known: set[tuple[str, type[Exception]]] = set()

    @contextmanager
    def logged(self, what: str, where: str = "") -> Iterator[None]:
        """Logs an error of the block.

        Args:
            what: the service gets.
            where: in the run that is; not a part of the kind.
        """
        try:
            yield
        except Exception as error:  # of the package's choice, and of the network's
            if (what, type(error)) in self._known:
                return
            self._known.add((what, type(error)))
            logger.warning(
                "%s did not take %s%s: %s: %s. The run continues; further failures of this kind "
                "are not logged",
                self._service,
                what,
                where,
                type(error).__name__,
                error,
            )


class WandbWriter:
    """A run of Weights & Biases, its files below the model_dir where that is a local folder."""

    def __init__(self, model_dir: str) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self._wandb: Any = wandb
        self._failures = _Failures("Weights & Biases")
        path = os.path.join(model_dir, "wandb_run_id.txt")
        run_id = (storage.read_text(path) or "").strip() or secrets.token_hex(8)
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=_run_name(model_dir),
            id=run_id,
            resume="allow",
            dir=None if storage.is_remote(model_dir) else model_dir,
        )
        storage.write_text(path, f"{run_id}\n")
        # Its own step must never fall, and that of a restored run does.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, kind: Kind, step: int, values: Mapping[str, float | np.ndarray]) -> None:
        """As in `MetricsWriter`."""
        with self._failures.logged("the values", f" of step {step}"):
            self._run.log(
                {"step": step}
                | {
                    f"{kind}/{name}": self._wandb.Image(v) if isinstance(v, np.ndarray) else v
                    for name, v in values.items()
                }
            )

    def close(self, *, failed: bool = False) -> None:
        """As in `MetricsWriter`."""
        with self._failures.logged("the end of the run"):
            self._run.finish(exit_code=int(failed))


class MlflowWriter:
    """A run of MLflow in the experiment that MLFLOW_EXPERIMENT_NAME names, else in the default."""

    def __init__(self, model_dir: str) -> None:
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        self._metric: Any = Metric
        self._failures = _Failures("MLflow")
        self._client: Any = MlflowClient()
        path = os.path.join(model_dir, "mlflow_run_id.txt")
        run_id = (storage.read_text(path) or "").strip()
        if run_id:
            self._client.update_run(run_id, status="RUNNING")
        else:
            run_id = self._client.create_run(
                _experiment(self._client), run_name=_run_name(model_dir)
            ).info.run_id
            storage.write_text(path, f"{run_id}\n")
        self._run_id = run_id

    def write(self, kind: Kind, step: int, values: Mapping[str, float | np.ndarray]) -> None:
        """As in `MetricsWriter`; other characters in names become underscores."""
        now, metrics, where = round(1000 * time.time()), [], f" of step {step}"
        for name, value in values.items():
            key = _NOT_IN_MLFLOW.sub("_", f"{kind}/{name}")
            if isinstance(value, np.ndarray):
                file = f"{key}/{step:08}.png"
                with self._failures.logged("an image", where):
                    self._client.log_image(self._run_id, value, artifact_file=file)
            elif math.isfinite(value):
                metrics.append(self._metric(key, float(value), now, step))
        with self._failures.logged("the values", where):
            self._client.log_batch(self._run_id, metrics=metrics)

    def close(self, *, failed: bool = False) -> None:
        """As in `MetricsWriter`."""
        status = "FAILED" if failed else "FINISHED"
        with self._failures.logged("the end of the run"):
            self._client.set_terminated(self._run_id, status=status)


def _experiment(client: Any) -> str:
    """The id of the experiment, which is made if needed."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
    found = client.get_experiment_by_name(name)
    return client.create_experiment(name) if found is None else found.experiment_id


def _run_name(model_dir: str) -> str:
    return os.path.basename(model_dir.rstrip("/"))
