"""Converts the predecessor's settings to an experiment, with remarks on what changes."""

import math
from typing import Any, NamedTuple

from tpudet.detection.legacy.frozen_blocks import FrozenBlocks, frozen_blocks
from tpudet.detection.legacy.idle_keys import idle_remarks
from tpudet.detection.legacy.mask_rcnn_conversion import mask_rcnn_values
from tpudet.detection.legacy.mask_rcnn_settings import MaskRCNNSettings
from tpudet.detection.legacy.model_conversion import Backbone, model_values, parse_backbone
from tpudet.detection.legacy.settings import Settings
from tpudet.detection.legacy.shared_settings import SharedSettings
from tpudet.detection.legacy.train_settings import LearningRate
from tpudet.trainkit.config.decode import ConfigError
from tpudet.trainkit.config.yaml_tree import Branch

AnySettings = Settings | MaskRCNNSettings


class Converted(NamedTuple):
    """An experiment as plain values, and remarks for the user."""

    values: dict[str, Any]
    remarks: tuple[str, ...]  # settings without effect there, differences here
    frozen_blocks: int  # blocks of the backbone that the file meant to freeze


def convert_settings(settings: AnySettings, written: Branch) -> Converted:
    """Returns the experiment that trains as the predecessor was meant to.

    A setting that had no effect by mistake (freezing, checkpoints, the exported size) now has the
    effect that its author intended, and a remark says so. Where the predecessor did something else
    than a setting's name says, its behaviour is kept: a cosine that rises again is `cosine_cyclic`.

    Args:
        settings: the file over the predecessor's defaults.
        written: the file itself, which shows what was set.

    Raises:
        ConfigError: a value has no counterpart here.
    """
    backbone = parse_backbone(settings)
    frozen = _frozen(settings, backbone)
    remarks: list[str] = []
    if isinstance(settings, Settings):
        model = model_values(settings, backbone, remarks)
    else:
        model = mask_rcnn_values(settings, backbone, remarks)
    values = {
        "model": model,
        "data": _data(settings, remarks),
        "train": _train(settings, frozen, remarks),
        "evaluation": {
            "schedule": {
                "batch_size": settings.predict.predict_batch_size,
                "every_steps": settings.eval.num_steps_per_eval,
            },
        },
    }
    if isinstance(settings, Settings):  # tpu_models trained nothing else
        remarks.append(
            "train_on_dataset.sh of tpu_models evaluated every 5000 steps, or 2000 for less than "
            f"20 classes, whatever the file said; evaluation.schedule.every_steps is "
            f"{settings.eval.num_steps_per_eval}, eval.num_steps_per_eval"
        )
    remarks += _freeze_remarks(settings, backbone, frozen)
    remarks += idle_remarks(settings, backbone.kind, written)
    return Converted(values, tuple(remarks), frozen.blocks)


def _frozen(settings: SharedSettings, backbone: Backbone) -> FrozenBlocks:
    try:
        return frozen_blocks(settings.train.frozen_variable_prefix, backbone.kind, backbone.number)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _data(settings: AnySettings, remarks: list[str]) -> dict[str, Any]:
    parser, train = settings.parser, settings.train
    stride = 2**settings.anchor.max_level
    height, width = parser.output_size
    canvas = [-(-side // stride) * stride for side in parser.output_size]
    if canvas != [height, width]:
        remarks.append(
            f"output_size {height}x{width} was padded to {canvas[0]}x{canvas[1]}, multiples of "
            f"{stride}: data.canvas_size is that, and images now fill it"
        )
    if isinstance(settings, Settings) and (height, width) != (640, 640):
        remarks.append(
            f"exported models did not have this size {height}x{width} but 640x640, whatever their "
            "folders were called; now an export has data.canvas_size"
        )
    directory = train.train_file_pattern.rpartition("/")[0]
    values: dict[str, Any] = {"directory": directory} if directory else {}
    values |= {
        "canvas_size": canvas,
        "max_instances": parser.max_num_instances,
        "horizontal_flip": parser.aug_rand_hflip,
        "scale_range": [parser.aug_scale_min, parser.aug_scale_max],
    }
    if parser.policy:
        values["augmentations"] = [{"kind": "autoaugment", "policy": parser.policy}]
        remarks.append(
            f"autoaugment {parser.policy}: Contrast made images of more than 65,280 pixels white "
            "there; here all operations do what Pillow does, and they come after scaling, cropping "
            "and flipping, not before"
        )
    return values


def _train(settings: SharedSettings, frozen: FrozenBlocks, remarks: list[str]) -> dict[str, Any]:
    train = settings.train
    values: dict[str, Any] = {
        "total_steps": train.total_steps,
        "batch_size": train.train_batch_size,
        "reference_batch_size": train.train_batch_size,
        "iterations_per_loop": train.iterations_per_loop,
        "checkpoint_every_steps": settings.eval.num_steps_per_eval,
        "optimizer": _optimizer(settings, remarks),
        "learning_rate": _learning_rate(train.learning_rate, train.total_steps, remarks),
        "freeze": list(frozen.patterns),
    }
    if not settings.architecture.use_bfloat16:
        values["precision"] = "float32"
    if train.gradient_clip_norm:
        values["gradient_clip_norm"] = train.gradient_clip_norm
        remarks.append(
            f"gradient_clip_norm {train.gradient_clip_norm:g} acted on the gradients of each core "
            "before they were summed; here it acts on the gradients of the whole batch"
        )
    if train.checkpoint.path:
        values["weights"] = {"path": train.checkpoint.path}
        remarks += _checkpoint_remarks(settings)
    if train.l2_weight_decay and train.regularization_variable_regex == "":
        remarks.append(
            f"l2_weight_decay {train.l2_weight_decay:g} also acted on biases, and in the reported "
            "loss on frozen variables; here it acts on kernels that train"
        )
    return values


def _optimizer(settings: SharedSettings, remarks: list[str]) -> dict[str, Any]:
    optimizer, decay = settings.train.optimizer, settings.train.l2_weight_decay
    match optimizer.type:
        case "momentum":
            own: dict[str, Any] = {"momentum": optimizer.momentum}
        case "adam":
            own = {}
            remarks.append("adam had an epsilon of 1e-8; here it has 1e-7")
        case "rmsprop":
            own = {"momentum": optimizer.momentum, "epsilon": 1e-10}
        case _:
            raise ConfigError(
                f"train.optimizer.type {optimizer.type} has no counterpart; momentum, adam and "
                "rmsprop have one"
            )
    return {"kind": optimizer.type, **own, "weight_decay": decay}


def _learning_rate(rate: LearningRate, total_steps: int, remarks: list[str]) -> dict[str, Any]:
    start, peak = rate.warmup_learning_rate, rate.init_learning_rate
    if rate.warmup_steps and start > peak:
        remarks.append(
            f"the warm-up fell from {start:g} to the peak of {peak:g} there; here its "
            f"{rate.warmup_steps} steps use the peak rate"
        )
    shared = {
        "peak": peak,
        "warmup_steps": rate.warmup_steps,
        "warmup_start": min(start, peak),
    }
    if rate.type == "step":
        return {"kind": "step", **shared, **_drops(rate, remarks)}
    if rate.total_steps == total_steps:
        return {"kind": "cosine", **shared}
    period = 2 * (rate.total_steps - rate.warmup_steps)
    remarks.append(
        (
            f"the cosine reached 0 at step {rate.total_steps} of {total_steps} and was not "
            f"clamped: it rose to its peak again every {period} steps"
            if rate.total_steps < total_steps
            else f"the cosine would have reached 0 at step {rate.total_steps}, after the end of "
            f"the run at {total_steps}: the run ends before the rate reaches 0"
        )
        + ". That is cosine_cyclic here; cosine falls once, over the whole run, as it did in "
        "versions whose train.learning_rate had no total_steps"
    )
    return {"kind": "cosine_cyclic", **shared, "trough_step": rate.total_steps}


def _drops(rate: LearningRate, remarks: list[str]) -> dict[str, Any]:
    """Returns the drops that took effect: of all steps passed, the one listed last counts.

    None took effect during the warm-up; at its end, the last one listed before it did. One that
    was above the rate before, a default of a low peak, say, is left out.
    """
    written = list(zip(rate.learning_rate_steps, rate.learning_rate_levels, strict=True))
    steps: list[int] = []
    rates: list[float] = []
    rises: list[str] = []
    for step in sorted({max(step, rate.warmup_steps) for step in rate.learning_rate_steps}):
        level = next(level for begin, level in reversed(written) if begin <= step)
        before = rates[-1] if rates else rate.init_learning_rate
        if level < before:
            steps.append(step)
            rates.append(level)
        elif level > before:
            rises.append(f"from {before:g} to {level:g} at step {step}")
    if rises:
        remarks.append(f"the learning rate rose {', '.join(rises)} there; here it does not")
    elif steps != list(rate.learning_rate_steps):
        remarks.append(
            f"learning_rate_steps {list(rate.learning_rate_steps)} with levels "
            f"{list(rate.learning_rate_levels)}: the step listed last of those passed counted, so "
            f"the rates were {rates} from {steps} on"
        )
    tenths = [rate.init_learning_rate / 10**drops for drops in range(1, len(steps) + 1)]
    is_usual = all(math.isclose(*pair) for pair in zip(rates, tenths, strict=True))
    return {"drop_steps": steps} | ({} if is_usual else {"drop_rates": rates})


def _checkpoint_remarks(settings: SharedSettings) -> list[str]:
    checkpoint = settings.train.checkpoint
    if not checkpoint.prefix:
        return [
            f"checkpoint {checkpoint.path} had no prefix and loaded nothing, silently; now it is "
            "loaded, and the log lists what is not found in it"
        ]
    return [
        f"checkpoint {checkpoint.path}: the prefix {checkpoint.prefix} was a scope of the model, "
        "and one that a detector had saved itself, with that scope in its names, loaded nothing, "
        "silently. Now both are found without a prefix, and a run that loads too little stops"
    ]


def _freeze_remarks(
    settings: SharedSettings, backbone: Backbone, frozen: FrozenBlocks
) -> list[str]:
    pattern = settings.train.frozen_variable_prefix
    if not pattern:
        return []
    if not frozen.patterns:
        unknown = " (the names of SE-ResNeXt are not converted)"
        reason = unknown if backbone.kind == "seresnext" else ""
        return [
            f"frozen_variable_prefix {pattern} matched nothing and froze nothing{reason}: "
            "train.freeze is empty"
        ]
    now = ", ".join(frozen.patterns)
    remarks = []
    if frozen.had_effect:
        what = (
            "convolutions with the scale and shift of their BatchNorm, while its statistics "
            "kept moving"
            if frozen.names_batch_norm
            else "convolutions only, while their BatchNorm kept training"
        )
        remarks.append(f"frozen_variable_prefix {pattern} froze {what}; now all of {now} is frozen")
    else:
        remarks.append(
            f"frozen_variable_prefix {pattern} froze nothing: a YAML file keeps the letters of "
            f"r'...', and names began with backbone/. Now {now} are frozen; to train as "
            "there, set train.freeze to []"
        )
    if not settings.train.checkpoint.path:
        remarks.append(
            f"{now} would be frozen at random values, since no checkpoint is named: set "
            "train.weights.path, or train.freeze to []"
        )
    return remarks
