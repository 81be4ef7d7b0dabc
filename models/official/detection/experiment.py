"""A whole experiment on one page: training, evaluation and export.

A config value goes one way: the config is decoded, the pretrained weights are opened once, every
`auto` is resolved, the model is built, its weights are loaded, the engine is built. Evaluation and
export share the first half and take the weights from a checkpoint.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Mapping, Sequence

from tpudet.detection.build_detector import (
    DetectorTask,
    build_detector_training,
    resolve_auto,
    restore_task,
)
from tpudet.detection.config import ExperimentConfig, advise_on_cpus, load_experiment
from tpudet.detection.data.foreign_records import check_foreign_records
from tpudet.detection.data.resize import build_resize
from tpudet.detection.data.sample import describe_lacks, describe_left_out, require_boxes
from tpudet.detection.inference.export import BoxConvention, export_saved_model, round_up_canvas
from tpudet.detection.modeling.config import OneStagePostprocessConfig
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.config.decode import ConfigError
from tpudet.trainkit.evaluation_results import result_files
from tpudet.trainkit.input_errors import input_errors_in_words
from tpudet.trainkit.record_splits import Split, find_split, first_records, require_classes
from tpudet.trainkit.saved_model import require_same_run, run_metadata, saved_model_path
from tpudet.trainkit.training.build_engine import are_cpus, choose_devices, set_precision
from tpudet.trainkit.training.build_training import Training
from tpudet.trainkit.training.config import stop_at_rule
from tpudet.trainkit.training.devices import Devices
from tpudet.trainkit.training.evaluator import EvaluationSettings
from tpudet.trainkit.training.kept_settings import require_kept_settings
from tpudet.trainkit.training.lr_finder import RangeTest, run_range_test
from tpudet.trainkit.training.model_dir import load_classes, load_run, select_checkpoint
from tpudet.trainkit.training.modes import Mode, run_training
from tpudet.trainkit.training.run_outlook import log_frozen, log_plan
from tpudet.trainkit.training.same_settings import require_same_settings
from tpudet.trainkit.training.start import Start, resolve_start

logger = logging.getLogger(__name__)


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
    start = resolve_start(
        config,
        num_images=sum(split.records_per_shard),
        model_dir=model_dir,
        trains=mode != "eval",
        resolve_auto=resolve_auto,
    )
    config, devices = start.config, start.devices
    require_same_settings(start, class_list_text, split, mode=mode, dry_run=dry_run)
    training = build_detector_training(
        config, classes=classes, train_split=split, devices=devices, pretrained=start.pretrained
    )
    _log_start(start, training, split=split, classes=classes)
    evaluation = _evaluation_settings(
        start, training, mode=mode, train_split=split, classes=classes, model_dir=model_dir
    )
    if dry_run:
        require_kept_settings(model_dir, config, load_experiment, trains=mode != "eval")
        return 0
    eval_shards = _eval_shards(config, classes) if evaluation else []
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
            advice_if_slow=_advice_if_slow(config, split, devices),
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
    data = dataclasses.replace(config.data, close_mosaic_steps=0)  # the test is no end of a run
    config = dataclasses.replace(config, data=data)
    return run_range_test(
        config,
        split,
        start=start,
        end=end,
        num_steps=num_steps,
        resolve_auto=resolve_auto,
        build_training=functools.partial(
            build_detector_training, classes=classes, train_split=split
        ),
    )


def evaluate(
    model_dir: str, *, step: str, split: str = "", overrides: Sequence[str] = (), output: str = ""
) -> tuple[Mapping[str, float], str]:
    """Evaluates a checkpoint and writes metrics, drawn images and a report.

    Args:
        model_dir: the folder that `train` wrote.
        step: a step number, "latest" or "best".
        split: the split to evaluate; empty means `data.eval_split`.
        overrides: `KEY=VALUE` changes to the config of the model_dir.
        output: folder of the results; empty means the model_dir.

    Returns:
        The metrics, and the path of the files written, without their endings: `.json`, `.png`, and
        those of `write_report` after an underscore.

    Raises:
        UserError: the model_dir, the checkpoint or the split is not usable.
    """
    # Late, as below: an export needs no pandas and no Matplotlib, whose imports take a second.
    from tpudet.detection.evaluation.report import write_report
    from tpudet.detection.evaluation.split import build_evaluation

    if split:
        overrides = [*overrides, f"data.eval_split={split}"]
    run = load_run(model_dir, functools.partial(load_experiment, overrides=overrides))
    config, checkpoint = run.config, select_checkpoint(model_dir, step)
    _eval_shards(config, run.classes)  # refused before the model is built
    devices = choose_devices(config.train)
    set_precision(config.train, devices, trains=False)
    files = result_files(config, model_dir, checkpoint.step, load_experiment, output)
    evaluation = build_evaluation(
        config,
        predict=restore_task(run, checkpoint, devices=devices).predict,
        classes=run.classes,
        devices=devices,
        image_path=f"{files.path}.png",
        report=functools.partial(write_report, prefix=f"{files.path}_", title=files.title),
    )
    with input_errors_in_words(lambda: _eval_shards(config, run.classes)):
        metrics = files.write_metrics(lambda: evaluation(checkpoint.step).metrics)
    return metrics, files.path


def check_export(config: ExperimentConfig, *, model_dir: str, export_root: str) -> None:
    """Raises an error if a run with this config could not be exported after training.

    Args:
        config: the experiment.
        model_dir: the folder of the run.
        export_root: folder for SavedModels.

    Raises:
        FileExistsError: something else has the place of the SavedModel, or that of another run.
    """
    require_same_run(saved_model_path(export_root, model_dir, config.data.canvas_size), model_dir)


def export(
    model_dir: str,
    *,
    export_root: str,
    step: str,
    canvas_size: tuple[int, int] | None,
    boxes: BoxConvention,
    overwrite: bool,
) -> tuple[str, int]:
    """Exports a checkpoint as a SavedModel, `<export_root>/<name of model_dir>-<resolution>`.

    Args:
        model_dir: the folder that `train` wrote.
        export_root: folder for SavedModels.
        step: a step number, "latest" or "best".
        canvas_size: height and width in pixels; None means that of training. Sides are rounded up
            to multiples of the model's stride, which is logged.
        boxes: whether boxes are fractions of the original image, or in its pixels.
        overwrite: replace an existing SavedModel.

    Returns:
        The directory of the SavedModel, and the step of the checkpoint.

    Raises:
        UserError: the model_dir or the checkpoint is not usable.
        FileExistsError: the SavedModel exists and `overwrite` is false.
    """
    run = load_run(model_dir, load_experiment)
    canvas_size = round_up_canvas(
        canvas_size or run.config.data.canvas_size, run.config.model.stride
    )
    checkpoint = select_checkpoint(model_dir, step)
    task = restore_task(run, checkpoint, canvas_size=canvas_size)
    resize = dataclasses.asdict(run.config.data.resize)
    post = run.config.model.postprocess
    directory = export_saved_model(
        model=task.model,
        predict=task.predict,
        canvas_size=canvas_size,
        resize=build_resize(run.config.data.resize),
        class_list_text=run.class_list_text,
        directory=saved_model_path(export_root, model_dir, canvas_size),
        metadata={
            **run_metadata(model_dir, checkpoint.step),
            "resize": resize.pop("kind"),
            **resize,  # the sides of short_side
            "class_agnostic": isinstance(post, OneStagePostprocessConfig) and post.class_agnostic,
            "nms_iou_threshold": post.nms_iou_threshold,
        },
        boxes=boxes,
        padding=run.config.model.padding,
        pixel_mean=task.model.pixel_mean,
        pixel_std=task.model.pixel_std,
        overwrite=overwrite,
    )
    return directory, checkpoint.step


def _open_data(config: ExperimentConfig) -> tuple[str, Sequence[ClassEntry], Split]:
    """Returns the text and the rows of the class list, and the records to train on."""
    data = config.data
    class_list_text, classes = load_classes(data.directory)
    split = find_split(data.directory, data.train_split, [entry.name for entry in classes])
    require_boxes(split.manifest, data.train_split)
    return class_list_text, classes, first_records(split, data.fraction)


def _eval_shards(config: ExperimentConfig, classes: Sequence[ClassEntry]) -> list[str]:
    data, names = config.data, [entry.name for entry in classes]
    split = find_split(data.directory, data.eval_split, names)
    if split.manifest is None:  # ids of other programs' records mean the classes beside them
        require_classes(data.directory, classes)
    return split.shards


def _advice_if_slow(config: ExperimentConfig, split: Split, devices: Devices) -> str:
    num_images = sum(split.records_per_shard)
    return advise_on_cpus(config, num_images=num_images) if are_cpus(devices) else ""


def _log_start(
    start: Start[ExperimentConfig],
    training: Training[DetectorTask],
    *,
    split: Split,
    classes: Sequence[ClassEntry],
) -> None:
    """Logs what will be trained on what, and all that looks wrong."""
    config = start.config
    log_plan(
        config.train,
        model=training.task.model,
        kind=config.model.kind,
        canvas_size=config.data.canvas_size,
        num_images=sum(split.records_per_shard),
        num_classes=len(classes),
        num_devices=start.devices.num_replicas,
        idle_keys=(*config.model.idle_keys(), *config.data.idle_keys()),
    )
    name, data = config.data.train_split, config.data
    # A manifest counts all records, those beyond data.fraction too.
    counted = f"split {name}" if data.fraction == 1.0 else f"the whole of split {name}"
    for lack in describe_lacks(split.manifest):
        logger.warning("%s: %s", counted, lack)
    for lack in check_foreign_records(split, classes, name):
        logger.warning("split %s: %s", name, lack)
    if left_out := describe_left_out(split.manifest, data.max_instances):
        logger.info("%s: %s", counted, left_out)
    loaded = training.loaded.loaded if training.loaded else ()
    log_frozen(training.frozen, loaded=loaded, begins=start.begins)


def _evaluation_settings(
    start: Start[ExperimentConfig],
    training: Training[DetectorTask],
    *,
    mode: Mode,
    train_split: Split,
    classes: Sequence[ClassEntry],
    model_dir: str,
) -> EvaluationSettings | None:
    """Returns how the run is evaluated; None for one that only trains."""
    if mode == "train":
        return None
    from tpudet.detection.evaluation.report import report_run
    from tpudet.detection.evaluation.split import build_evaluation

    config = start.config
    has_metrics, text = stop_at_rule(config.train, config.metrics)
    if not has_metrics:
        raise ConfigError(text)
    if set(train_split.shards) & set(_eval_shards(config, classes)):
        logger.warning(
            "data.eval_split %s is also trained on: its metrics say nothing about unseen images",
            config.data.eval_split,
        )
    return EvaluationSettings(
        evaluate=build_evaluation(
            config,
            predict=training.task.predict,
            classes=classes,
            devices=start.devices,
            image_path=f"{model_dir}/detections.png",
            report=functools.partial(report_run, model_dir=model_dir),
        ),
        every_steps=config.evaluation.schedule.every_steps,
        best_metric=config.evaluation.schedule.best_metric,
        headline=_headline(config),
    )


def _headline(config: ExperimentConfig) -> tuple[str, ...]:
    """Returns the metrics that the log shows by name."""
    has_masks = config.model.predicts_masks and config.evaluation.rules.kind == "coco"
    return ("AP", "AP50", "mask_AP", "mask_AP50") if has_masks else ("AP", "AP50")
