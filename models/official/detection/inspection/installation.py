"""Describes an installation: versions, devices, folders, and what keeps training from running."""

import importlib.util
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from tpudet.detection.submission.fusion.kernel import PLAIN_VARIABLE, load_kernel
from tpudet.trainkit.backend_arguments import find_tpu, has_tpu_driver
from tpudet.trainkit.config.find import config_folder, list_configs
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.source_version import git_commit
from tpudet.trainkit.tpu_machine import pod_size, sign_of_tpu

_TENSORFLOW = ("tensorflow", "tensorflow-cpu")
_OPTIONAL = {"jax": "[jax] or [tpu]", "ray": "[cluster]"}  # package: extra


class Fact(NamedTuple):
    """One line of the report."""

    name: str
    value: str
    prevents_training: bool = False


def describe_installation() -> list[Fact]:
    """Returns what `tpudet check` prints, in its order."""
    commit = git_commit()
    own = _version("tpudet") + (f" ({commit})" if commit != "unknown" else "")
    return [
        Fact("python", platform.python_version()),
        Fact("tpudet", own),
        *_packages(),
        *_devices(),
        _kernel(),
        _configs(),
        _folder("DATA", "data", "no such folder"),
        _folder("STORAGE", "output", "made when first written to"),
    ]


def format_facts(facts: list[Fact]) -> str:
    """Returns aligned lines, and a last one that says whether training can run."""
    width = max(len(fact.name) for fact in facts)
    lines = [f"{fact.name:{width}}  {fact.value}" for fact in facts]
    missing = [fact.name for fact in facts if fact.prevents_training]
    verdict = f"Training cannot run: {', '.join(missing)}." if missing else "Training can run."
    return "\n".join([*lines, verdict])


def _packages() -> Iterator[Fact]:
    found = next((name for name in _TENSORFLOW if _version(name)), "")
    if found:
        yield Fact("tensorflow", _version(found))
    else:
        extras = "pip install tpudet with the extra [cpu], [cuda] or [tpu]"
        yield Fact("tensorflow", f"not installed: {extras}", prevents_training=True)
    for name in ("keras", "numpy"):
        yield Fact(name, _version(name) or "not installed", prevents_training=not _version(name))
    for name, extra in _OPTIONAL.items():
        yield Fact(name, _version(name) or f"not installed; it comes with the extra {extra}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _devices() -> Iterator[Fact]:
    if importlib.util.find_spec("tensorflow"):
        yield _seen("TensorFlow sees", _tensorflow_devices, prevents_training=True)
    if has_tpu_driver() and (hosts := pod_size()) > 1:
        note = f"not looked up: only `tpudet train` on all {hosts} hosts of the pod sees them"
        yield Fact("JAX sees", note)
    elif importlib.util.find_spec("jax") or sign_of_tpu():
        yield _seen("JAX sees", _jax_devices)


def _seen(name: str, find: Callable[[], list[str]], *, prevents_training: bool = False) -> Fact:
    try:
        return Fact(name, _count(find()))
    except UserError as error:  # so does training
        return Fact(name, f"no device: {error}", prevents_training=True)
    except Exception as error:  # of any kind: a driver or a library that does not fit
        return Fact(name, f"nothing, it cannot start: {error!r}", prevents_training)


def _tensorflow_devices() -> list[str]:
    import tensorflow as tf

    return [device.device_type for device in tf.config.list_physical_devices()]


def _jax_devices() -> list[str]:
    """Raises UserError where training would, because the TPU cannot be used."""
    find_tpu()
    import jax

    return [device.platform.upper() for device in jax.devices()]


def _count(devices: list[str]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in sorted(Counter(devices).items()))


def _kernel() -> Fact:
    try:
        load_kernel(plain=False)
    except ImportError:
        return Fact(
            "merging", "plain NumPy, 100 times slower: install a C compiler and tpudet again"
        )
    if os.environ.get(PLAIN_VARIABLE, "0") not in ("", "0"):
        return Fact("merging", f"plain NumPy, as {PLAIN_VARIABLE} wants it")
    return Fact("merging", "compiled kernel")


def _configs() -> Fact:
    folder = config_folder()
    count = len(list_configs(folder))
    return Fact("configs", f"{folder}, {count} experiments", prevents_training=not count)


def _folder(variable: str, default: str, if_missing: str) -> Fact:
    path = os.environ.get(variable) or default
    if storage.is_remote(path):
        return Fact(f"${variable}", path)
    note = "" if os.path.isdir(path) else f" ({if_missing})"
    return Fact(f"${variable}", os.path.abspath(path) + note)
