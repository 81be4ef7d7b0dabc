"""Reads the config.json that timm's hub stores beside a file of weights."""

import os
from typing import Any, NamedTuple

from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.files.storage import read_text

_NAME = "config.json"


class HubConfig(NamedTuple):
    """The config.json that a hub stores beside a file of weights."""

    path: str  # of the file itself
    name: str  # architecture and recipe, such as "tf_efficientnet_b0.ns_jft_in1k"
    mean: tuple[float, ...]  # red, green, blue, of pixels 0..1
    deviation: tuple[float, ...]


def read_hub_config(path: str) -> HubConfig | None:
    """Reads the config.json beside a file of weights; None if there is none of this kind."""
    config_path = os.path.join(os.path.dirname(path), _NAME)
    try:
        content: Any = parse_json((path and read_text(config_path)) or "")
        published = content["pretrained_cfg"]
        name = f"{content['architecture']}.{published.get('tag', '')}"
        mean, deviation = (tuple(map(float, published[key])) for key in ("mean", "std"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None  # there is none, it may not be read, or it is of one of many other systems
    return (
        HubConfig(config_path, name, mean, deviation) if len(mean) == len(deviation) == 3 else None
    )
