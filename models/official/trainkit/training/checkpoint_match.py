"""Whether a checkpoint fits an engine, and what is said where it does not."""

from typing import Any

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training.engine import LOSS_SCALE, Signature

_LISTED_NAMES = 30  # differences spelled out in one message


class CheckpointMismatchError(UserError):
    """A checkpoint belongs to another model; the message lists every difference."""


def check_match(
    prefix: str, reader: Any, signature: Signature, *, ignored: tuple[str, ...] = ()
) -> None:
    """Compares a checkpoint with what an engine holds, but for the loss scale.

    Args:
        prefix: path of the checkpoint without `.index`.
        reader: of the bundle.
        signature: of the engine.
        ignored: keys that begin with one of these are not compared either.

    Raises:
        CheckpointMismatchError: keys, shapes or dtypes differ.
    """
    ignored += (LOSS_SCALE,)
    stored, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    shapes = {key: shape for key, shape in stored.items() if not key.startswith(ignored)}
    signature = {key: value for key, value in signature.items() if not key.startswith(ignored)}
    differing = []
    for key in sorted(shapes.keys() & signature.keys()):
        shape, dtype = signature[key]
        found, expected = f"{dtypes[key].name} {list(shapes[key])}", f"{dtype} {list(shape)}"
        if found != expected:
            differing.append(f"{key}: {found} in the checkpoint, {expected} here")
    groups = {
        "missing from the checkpoint": sorted(signature.keys() - shapes.keys()),
        "only in the checkpoint": sorted(shapes.keys() - signature.keys()),
        "with another shape or dtype": differing,
    }
    if any(groups.values()):
        lines = [f"{prefix} does not fit this model and optimizer:"]
        for title, names in groups.items():
            if names:
                lines += [f"  {title} ({len(names)}):", *(f"    {n}" for n in first_names(names))]
        lines.append(f"Resume with the settings that wrote it, {start_from(prefix)}")
        raise CheckpointMismatchError("\n".join(lines))


def first_names(names: list[str]) -> list[str]:
    """Returns as many lines as a message has room for; the last one counts the rest."""
    rest = len(names) - _LISTED_NAMES
    return names if rest <= 0 else [*names[:_LISTED_NAMES], f"… and {rest} more"]


def start_from(prefix: str) -> str:
    """Returns the end of a message: the way on where a run cannot resume from a checkpoint."""
    return (
        "or choose another model_dir and start it from these weights: "
        f"--set train.weights.path={prefix}"
    )
