"""A whole experiment on one page: training, evaluation and export."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tpudet.classification.build_classifier import (
    build_classifier_training,
    resolve_auto,
    restore_task,
)
from tpudet.classification.config import ExperimentConfig, load_experiment
from tpudet.classification.data.pipeline import read_names
from tpudet.classification.data.splits import (
    find_eval_shards,
    find_joined_split,
    require_labels,
    require_one_division,
)
from tpudet.classification.inference.export import export_saved_model
from tpudet.classification.modeling.classifier import ClassifierTask
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.evaluation_results import ResultFiles, result_files
from tpudet.trainkit.input_errors import input_errors_in_words
from tpudet.trainkit.record_splits import Split, require_classes
from tpudet.trainkit.saved_model import require_same_run, run_metadata, saved_model_path
from tpudet.trainkit.training.build_engine import choose_devices, set_precision
from tpudet.trainkit.training.build_training import Training
from tpudet.trainkit.training.devices import Devices
from tpudet.trainkit.training.evaluator import EvaluationSettings
from tpudet.trainkit.training.kept_settings import require_kept_settings
from tpudet.trainkit.training.lr_finder import RangeTest, run_range_test
from tpudet.trainkit.training.model_dir import Run, load_classes, load_run, select_checkpoint
from tpudet.trainkit.training.modes import Mode, run_training
from tpudet.trainkit.training.run_outlook import log_frozen, log_plan
from tpudet.trainkit.training.same_settings import require_same_settings
from tpudet.trainkit.training.start import Start, resolve_start

if TYPE_CHECKING:
    from tpudet.classification.evaluation.split import SplitEvaluation

_HEADLINE = ("top1", "macro_f1")  # metrics that the log shows by name


def train(
    config: ExperimentConfig,
    *,
    model_dir: str,
    mode: Mode = "train_and_eval",
    eval_timeout: float | None = None,
    deadline: float = math.inf,
    dry_run: bool = False,
) -> int:
    """Trains, evaluates, or both; resumes where an earlier run in `model_dir` stopped.

    Args:
        config: the experiment.
        model_dir: checkpoints, log and metrics go there.
        mode: "eval" waits for the checkpoints that another process writes.
        eval_timeout: seconds without a new checkpoint after which mode "eval" ends; None: never.
        deadline: when to save and stop, by `time.monotonic`.
        dry_run: build everything, log what would happen, and write nothing.

    Returns:
        The exit code of the process: 0 finished, 1 failed, and those of `trainkit.training.loop`.

    Raises:
        UserError: config, data, weights or checkpoints do not fit, or another process writes there.
    """
    class_list_text, classes, split = _open_data(config)
    eval_shards = find_eval_shards(config.data, classes, train=split) if mode != "train" else []
    start = resolve_start(
        config,
        num_images=sum(split.records_per_shard),
        model_dir=model_dir,
        trains=mode != "eval",
        resolve_auto=resolve_auto,
    )
    config, devices = start.config, start.devices
    require_same_settings(start, class_list_text, split, mode=mode, dry_run=dry_run)
    training = build_classifier_training(
        config, classes=classes, train_split=split, devices=devices, pretrained=start.pretrained
    )
    _log_start(start, training, split=split, num_classes=len(classes))
    evaluation = _evaluation_settings(
        config, training, mode=mode, classes=classes, devices=devices, model_dir=model_dir
    )
    if dry_run:
        require_kept_settings(model_dir, config, load_experiment, trains=mode != "eval")
        return 0
    with input_errors_in_words(lambda: split.shards + eval_shards):
        return run_training(
            config,
            training,
            mode=mode,
            model_dir=model_dir,
            class_list_text=class_list_text,
            train_split=split,
            load_config=load_experiment,
            evaluation=evaluation,
            eval_timeout=eval_timeout,
            deadline=deadline,
        )


def range_test(config: ExperimentConfig, *, start: float, end: float, num_steps: int) -> RangeTest:
    """Trains from the beginning with a rate that grows, see `find_learning_rate`.

    Args:
        config: the experiment.
        start: first rate.
        end: rate of the last step.
        num_steps: steps of the test.

    Raises:
        UserError: config, data set and weights do not fit together.
    """
    _, classes, split = _open_data(config)
    return run_range_test(
        config,
        split,
        start=start,
        end=end,
        num_steps=num_steps,
        resolve_auto=resolve_auto,
        build_training=functools.partial(
            build_classifier_training, classes=classes, train_split=split
        ),
    )


def evaluate(
    model_dir: str, *, step: str, split: str = "", overrides: Sequence[str] = (), output: str = ""
) -> tuple[Mapping[str, float], str]:
    """Evaluates a checkpoint on a whole split and writes metrics and a report.

    Args:
        model_dir: the folder that `train` wrote.
        step: a step number, "latest" or "best".
        split: the split to evaluate; empty means `data.eval_split`.
        overrides: `KEY=VALUE` changes to the config of the model_dir.
        output: folder of the results; empty means the model_dir.

    Returns:
        The metrics, and the path of the files written, without their endings: `.json`, and those
        of `write_report` after an underscore.

    Raises:
        UserError: the model_dir, the checkpoint or the split is not usable.
    """
    run, step_number, evaluation, files = _restore_evaluation(
        model_dir, step, split, overrides, output
    )
    require_labels(run.config.data.directory, run.config.data.eval_split)
    with input_errors_in_words(lambda: evaluation.shards):
        metrics = files.write_metrics(lambda: evaluation(step_number).metrics)
    return metrics, files.path


def predict_split(
    model_dir: str,
    *,
    step: str,
    split: str,
    class_names: Sequence[str],
    overrides: Sequence[str] = (),
) -> tuple[list[str], np.ndarray]:
    """Predicts a split, labelled or not, with a checkpoint.

    Args:
        model_dir: the folder that `train` wrote.
        step: a step number, "latest" or "best".
        split: the split, or several joined by `+`.
        class_names: C names of classes of the run.
        overrides: `KEY=VALUE` changes to the config of the model_dir.

    Returns:
        The n names of the images, in file order, and their probabilities [n, C], columns in the
        order of `class_names`.

    Raises:
        UserError: the model_dir, the checkpoint or the split is not usable, the run lacks a class,
            or probabilities are not finite.
    """
    run, _, evaluation, _ = _restore_evaluation(model_dir, step, split, overrides)
    known = [entry.name for entry in run.classes]
    lacking = [name for name in class_names if name not in known]
    if lacking:
        raise UserError(
            f"the run {model_dir} has no class {listing(lacking)}; its classes are {listing(known)}"
        )
    with input_errors_in_words(lambda: evaluation.shards):
        columns = [known.index(name) for name in class_names]
        probabilities = evaluation.predictions().probabilities[:, columns]
    broken = int((~np.isfinite(probabilities).all(axis=1)).sum())
    if broken:
        raise UserError(
            f"{broken} of {len(probabilities)} images of the split {split} have probabilities that "
            "are not finite: take another checkpoint with --step"
        )
    return read_names(evaluation.shards), probabilities


def check_export(config: ExperimentConfig, *, model_dir: str, export_root: str) -> None:
    """Raises an error if a run with this config could not be exported after training.

    Args:
        config: the experiment.
        model_dir: the folder of the run.
        export_root: folder for SavedModels.

    Raises:
        UserError: there is no SavedModel of such a classifier.
        FileExistsError: something else has the place of the SavedModel, or that of another run.
    """
    if config.data.windows:
        raise UserError(
            "data.windows: this classifier takes CT slices from records, and a SavedModel takes "
            "images: predict with tpudet gen_rsna_sub"
        )
    require_same_run(saved_model_path(export_root, model_dir, config.data.image_size), model_dir)


def export(model_dir: str, *, export_root: str, step: str, overwrite: bool) -> tuple[str, int]:
    """Exports a checkpoint as a SavedModel, `<export_root>/<name of model_dir>-<resolution>`.

    Args:
        model_dir: the folder that `train` wrote.
        export_root: folder for SavedModels.
        step: a step number, "latest" or "best".
        overwrite: replace an existing SavedModel.

    Returns:
        The directory of the SavedModel, and the step of the checkpoint.

    Raises:
        UserError: the model_dir or the checkpoint is not usable.
        FileExistsError: the SavedModel exists and `overwrite` is false.
    """
    run = load_run(model_dir, load_experiment)
    checkpoint, data = select_checkpoint(model_dir, step), run.config.data
    check_export(run.config, model_dir=model_dir, export_root=export_root)
    task = restore_task(run, checkpoint)
    directory = export_saved_model(
        model=task.model,
        predict=task.predict,
        loss=run.config.model.loss.kind,
        image_size=data.image_size,
        center_crop=data.center_crop,
        class_list_text=run.class_list_text,
        directory=saved_model_path(export_root, model_dir, data.image_size),
        metadata=run_metadata(model_dir, checkpoint.step),
        overwrite=overwrite,
    )
    return directory, checkpoint.step


def _open_data(config: ExperimentConfig) -> tuple[str, Sequence[ClassEntry], Split]:
    """Returns the text and the rows of the class list, and the records to train on."""
    data = config.data
    class_list_text, classes = load_classes(data.directory, data.classes)
    split = find_joined_split(data.directory, data.train_split, classes)
    require_labels(data.directory, data.train_split)
    require_one_division(data.directory, f"{data.train_split}+{data.eval_split}")
    return class_list_text, classes, split


def _log_start(
    start: Start[ExperimentConfig],
    training: Training[ClassifierTask],
    *,
    split: Split,
    num_classes: int,
) -> None:
    """Logs what will be trained on what."""
    config = start.config
    log_plan(
        config.train,
        model=training.task.model,
        kind=f"classifier, {config.model.backbone.kind}",
        canvas_size=config.data.image_size,
        num_images=sum(split.records_per_shard),
        num_classes=num_classes,
        num_devices=start.devices.num_replicas,
    )
    loaded = training.loaded.loaded if training.loaded else ()
    log_frozen(training.frozen, loaded=loaded, begins=start.begins)


def _evaluation_settings(
    config: ExperimentConfig,
    training: Training[ClassifierTask],
    *,
    mode: Mode,
    classes: Sequence[ClassEntry],
    devices: Devices,
    model_dir: str,
) -> EvaluationSettings | None:
    """Returns how the run is evaluated; None for one that only trains."""
    if mode == "train":
        return None
    # Late, as below: an export needs no pandas and no Matplotlib, whose imports take a second.
    from tpudet.classification.evaluation.report import report_run
    from tpudet.classification.evaluation.split import build_evaluation

    return EvaluationSettings(
        evaluate=build_evaluation(
            config,
            predict=training.task.predict,
            classes=classes,
            devices=devices,
            report=functools.partial(report_run, model_dir=model_dir),
        ),
        every_steps=config.evaluation.schedule.every_steps,
        best_metric=config.evaluation.schedule.best_metric,
        headline=_HEADLINE,
    )


def _restore_evaluation(
    model_dir: str, step: str, split: str, overrides: Sequence[str], output: str = ""
) -> "tuple[Run[ExperimentConfig], int, SplitEvaluation, ResultFiles]":
    """Returns a run, a step, the evaluation of a whole split with it, and its files."""
    from tpudet.classification.evaluation.report import write_report
    from tpudet.classification.evaluation.split import build_evaluation

    overrides = [*overrides, "evaluation.schedule.max_images=null"]
    if split:
        overrides.append(f"data.eval_split={split}")
    run = load_run(model_dir, functools.partial(load_experiment, overrides=overrides))
    if not run.config.data.classes:
        require_classes(run.config.data.directory, run.classes)
    checkpoint = select_checkpoint(model_dir, step)
    devices = choose_devices(run.config.train)
    set_precision(run.config.train, devices, trains=False)
    files = result_files(run.config, model_dir, checkpoint.step, load_experiment, output)
    evaluation = build_evaluation(
        run.config,
        predict=restore_task(run, checkpoint, devices=devices).predict,
        classes=run.classes,
        devices=devices,
        report=functools.partial(write_report, prefix=f"{files.path}_", title=files.title),
    )
    return run, checkpoint.step, evaluation, files
