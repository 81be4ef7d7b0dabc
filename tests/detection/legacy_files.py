"""The 134 experiments of the predecessor, one row each in legacy_settings.csv, as YAML files.

An empty field is the predecessor's default; `frozen` is `default`, `disable_this`, or blocks of an
EfficientNet, which the files wrote as the text of a raw string.
"""

import csv
from pathlib import Path
from typing import Any

import yaml

Row = dict[str, str]


def read_rows() -> list[Row]:
    with (Path(__file__).parent / "legacy_settings.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def whole_numbers(text: str, separator: str) -> list[int]:
    return [int(part) for part in text.split(separator)] if text else []


def frozen_blocks(row: Row) -> list[int]:
    """`stem+b0-14,20-24`: 0 to 14 and 20 to 24."""
    ranges = [whole_numbers(part, "-") for part in row["frozen"].rpartition("b")[2].split(",")]
    return [number for first, last in ranges for number in range(first, last + 1)]


def names_blocks(row: Row) -> bool:
    return row["frozen"] not in ("default", "disable_this")


def legacy_yaml(row: Row) -> str:
    """The file as its author will have written it: only what differs from the defaults."""
    return yaml.safe_dump(_without_defaults(_values(row)), sort_keys=False)


def _values(row: Row) -> dict[str, Any]:
    is_resnet = row["backbone"].startswith("resnet")
    neck: dict[str, Any] = {
        "fpn_feat_dims": int(row["filters"]),
        "num_repeats": int(row["repeats"]) if row["repeats"] else None,
        "use_separable_conv": row["separable"] == "yes" or None,
        "dropblock": {
            "dropblock_keep_prob": float(row["keep_prob"]) if row["keep_prob"] else None,
            "dropblock_size": int(row["block_size"]) if row["block_size"] else None,
        },
    }
    return {
        "train": _train(row),
        "eval": {"eval_batch_size": _number(row["eval_batch"])},
        "predict": {"predict_batch_size": _number(row["eval_batch"])},
        "architecture": {
            "backbone": "resnet" if is_resnet else row["backbone"],
            "multilevel_features": row["neck"],
        },
        "resnet": {"resnet_depth": int(row["backbone"][6:]) if is_resnet else None},
        "retinanet_parser": _parser(row),
        row["neck"]: neck,
        "postprocess": {
            "max_total_size": _number(row["max_detections"]),
            "score_threshold": float(row["score_threshold"]) if row["score_threshold"] else None,
        },
    }


def _train(row: Row) -> dict[str, Any]:
    start, _, steps = row["warmup"].partition(" ")
    return {
        "train_batch_size": _number(row["batch"]),
        "total_steps": int(row["total_steps"]),
        "learning_rate": {
            "type": row["schedule"],
            "warmup_learning_rate": float(start) if start else None,
            "warmup_steps": _number(steps),
            "init_learning_rate": float(row["peak"]),
            "learning_rate_levels": [float(level) for level in row["levels"].split()] or None,
            "learning_rate_steps": whole_numbers(row["steps"], " ") or None,
            "total_steps": _number(row["schedule_steps"]),
        },
        "checkpoint": {"path": row["checkpoint"] or None, "prefix": row["prefix"] or None},
        "frozen_variable_prefix": _frozen_variable_prefix(row),
        "l2_weight_decay": float(row["l2"]) if row["l2"] else None,
    }


def _parser(row: Row) -> dict[str, Any]:
    low, _, high = row["scale"].partition("-")
    return {
        "output_size": whole_numbers(row["size"], "x") or None,
        "aug_scale_min": float(low) if low else None,
        "aug_scale_max": float(high) if high else None,
        "use_autoaugment": bool(row["autoaugment"]) or None,
        "autoaugment_policy_name": row["autoaugment"] or None,
        "max_num_instances": _number(row["max_instances"]),
    }


def _frozen_variable_prefix(row: Row) -> str | None:
    if not names_blocks(row):
        return None if row["frozen"] == "default" else row["frozen"]
    numbers = "|".join(map(str, frozen_blocks(row)))
    stem = f"({row['backbone']}/stem/conv2d)|" if row["frozen"].startswith("stem") else ""
    return f"r'{stem}({row['backbone']}/blocks_({numbers})/conv2d)'"


def _number(text: str) -> int | None:
    return int(text) if text else None


def _without_defaults(tree: dict[str, Any]) -> dict[str, Any]:
    below = {
        key: _without_defaults(value) if isinstance(value, dict) else value
        for key, value in tree.items()
    }
    return {key: value for key, value in below.items() if value is not None and value != {}}
