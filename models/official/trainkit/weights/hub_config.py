"""The `config.json` that timm's hub lays beside a file of weights."""

import json
import os
from typing import Any, NamedTuple

import tensorflow as tf

from trainkit.durable_files import read_text

_NAME = "config.json"


class HubConfig(NamedTuple):
    """What it says of the weights."""

    path: str  # of the file itself
    name: str  # architecture and recipe, such as "tf_efficientnet_b0.ns_jft_in1k"
    mean: tuple[float, ...]  # red, green, blue, of pixels 0..1
    deviation: tuple[float, ...]


def read_hub_config(path: str) -> HubConfig | None:
    """Reads the one beside a file of weights; None where there is none, or one of another kind."""
    place = os.path.join(os.path.dirname(path), _NAME)
    try:
        text = read_text(place) if path else None
    except tf.errors.OpError:  # no right to read it, say
        text = None
    if text is None:
        return None
    try:
        content: Any = json.loads(text)
        published = content["pretrained_cfg"]
        name = f"{content['architecture']}.{published.get('tag', '')}"
        mean, deviation = (tuple(map(float, published[key])) for key in ("mean", "std"))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None  # many systems have a config.json
    return HubConfig(place, name, mean, deviation) if len(mean) == len(deviation) == 3 else None
