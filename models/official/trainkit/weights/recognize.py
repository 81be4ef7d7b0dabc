"""Recognises the origin of weights by their names."""

import difflib
import re
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from tpudet.trainkit.weights.families import BLOCKS, NORMALIZATIONS, SIGNATURES, Family, NameMap
from tpudet.trainkit.weights.hub_config import HubConfig, read_hub_config
from tpudet.trainkit.weights.name_maps import torch_names
from tpudet.trainkit.weights.stored_weights import WeightsError

# The same names and shapes as a ResNet, but with a blur filter, without weights, in its pooling.
_BLURRED = re.compile(r"resnet(aa|blur)\d")

_NETWORK = re.compile(r"net|rcnn|caffe|r\d\d")  # in the names of files that are published


class Recognized(NamedTuple):
    """A family, the place of its backbone in the file, and its names for our variables."""

    family: Family
    prefix: str  # of the backbone's names
    name_map: NameMap
    notes: tuple[str, ...] = ()  # sentences on what is not known

    def blocks_among(self, names: Collection[str]) -> list[str]:
        """Returns the names in the file that belong to blocks of the backbone, without counters.

        Empty for layers that are only numbered: see `tensorflow_names.check_depth`.
        """
        pattern = BLOCKS.get(self.name_map)
        if pattern is None:
            return []
        behind = re.compile(re.escape(self.prefix) + pattern)
        return [name for name in names if behind.fullmatch(name)]


def recognize(
    names: Collection[str], *, prefix: str = "", path: str = "", variant: str = ""
) -> Recognized:
    """Recognises whose backbone a file holds.

    Args:
        names: of the tensors in the file.
        prefix: only names with this prefix count; the backbone's own prefix is found after it.
        path: of the file. timm's `tf_efficientnet` files differ from its others only in this, and
            in the `config.json` that its hub stores beside a file.
        variant: of the file, as `StoredWeights` has it.

    Raises:
        WeightsError: no name begins with the prefix, or the names are not known.
    """
    inside = [name for name in names if name.startswith(prefix)]
    if not inside:
        near = difflib.get_close_matches(prefix, names, n=3, cutoff=0.0)
        raise WeightsError(
            f"No name in the weights begins with the prefix {prefix!r}; there are "
            f"{len(names)}, for example {', '.join(near) or 'none'}."
        )
    hub = read_hub_config(path)
    published = _published_name(path, hub)
    for signature in SIGNATURES:
        if not re.search(signature.path, published):
            continue
        if signature.variant not in ("", variant):
            continue
        if signature.besides and not any(re.search(signature.besides, name) for name in inside):
            continue
        found = _common_prefix(signature.names, inside)
        if found is not None:
            recognized = Recognized(signature.family, found, signature.name_map)
            return _as_published(recognized, published, hub)
    systems = dict.fromkeys(signature.family.name for signature in SIGNATURES)
    raise WeightsError(
        f"The names in the weights are of no backbone that is known here: {len(inside)} names, "
        f"for example {', '.join(sorted(inside)[:5])}. Known are {', '.join(systems)}."
    )


def _published_name(path: str, hub: HubConfig | None) -> str:
    """Returns a file's published name; the folders in which somebody keeps it say nothing of it.

    A hub's cache has a folder for each repository. Where the file names no network, as
    `model.safetensors` and `epoch_12.pth`, its folder may.
    """
    *folders, name = path.split("/")
    named = [folder for folder in folders if folder.startswith("models--")]
    if not named and not _NETWORK.search(name):
        named = folders[-1:]
    return " ".join([*named, name, *([hub.name] if hub else [])])


def _as_published(recognized: Recognized, published: str, hub: HubConfig | None) -> Recognized:
    """Applies what timm's hub says about a file, if it says anything."""
    if recognized.name_map is torch_names.resnet and _BLURRED.search(published):
        raise WeightsError(
            f"{published} is, by its name, a ResNet that blurs before it strides. Its tensors have "
            "the names of a plain ResNet, which would compute other features: choose weights of a "
            "plain ResNet."
        )
    by_timm = recognized.name_map in (torch_names.timm_efficientnet, torch_names.resnet)
    if hub is None or not by_timm:
        return recognized
    for name, numbers in NORMALIZATIONS.items():
        if np.allclose(numbers, (hub.mean, hub.deviation), rtol=0, atol=1e-4):
            family = recognized.family._replace(normalization=name)
            return recognized._replace(family=family)
    note = (
        f"{hub.path} has a mean of {hub.mean} and a deviation of {hub.deviation}, for which "
        f"model.normalization has no name; {recognized.family.normalization} is assumed."
    )
    return recognized._replace(notes=(note,))


def _common_prefix(wanted: tuple[str, ...], names: Collection[str]) -> str | None:
    """The shortest prefix with which all wanted names exist."""
    first, *others = wanted
    stored = set(names)
    prefixes = [name.removesuffix(first) for name in names if name.endswith(first)]
    for prefix in sorted(prefixes, key=len):
        if re.search(r"(^|[/.])$", prefix) and all(prefix + name in stored for name in others):
            return prefix
    return None
