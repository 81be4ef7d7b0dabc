"""The arithmetic of a training step that all engines share, as pure functions of tensors."""

from collections.abc import Callable, Mapping, Sequence

from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.training.engine import L2
from tpudet.trainkit.types import Tensor

# Once the loss scale is below this, gradients that overflow float16 are not due to the scale.
SMALLEST_LOSS_SCALE = 1.0

# The larger, the longer a new moving average follows the weights closely.
AVERAGE_WARMUP_STEPS = 9.0


def half_squared_norm(tensor: Tensor) -> Tensor:
    """Returns `sum(tensor ** 2) / 2`, a scalar."""
    return ops.sum(ops.square(tensor)) / 2.0


def check_losses(losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a task's losses as float32 scalars.

    Raises:
        ValueError: there is no "loss", or one of them is not a scalar.
    """
    shapes = {name: tuple(value.shape) for name, value in losses.items()}
    wrong = {name: shape for name, shape in shapes.items() if shape}
    if wrong or "loss" not in losses:
        raise ValueError(
            f"the task's losses are {sorted(losses)}; there must be a 'loss', and each must be a "
            f"scalar, which these are not: {wrong or 'none'}"
        )
    return {name: ops.cast(value, "float32") for name, value in losses.items()}


def add_l2(
    losses: Mapping[str, Tensor],
    decayed: Sequence[Tensor],
    *,
    weight_decay: float,
    num_replicas: int,
    half_squared_norm: Callable[[Tensor], Tensor] = half_squared_norm,
) -> dict[str, Tensor]:
    """Returns the losses with this replica's share of the L2 term, also added to "loss".

    Args:
        losses: of one replica, from `check_losses`.
        decayed: weights that the L2 term covers.
        weight_decay: the term is `weight_decay * sum(weight ** 2) / 2`; at 0 there is none.
        num_replicas: replicas whose shares add up to the term.
        half_squared_norm: a faster one of the engine's own.
    """
    if not weight_decay or not decayed:
        return dict(losses)
    norms = ops.stack([half_squared_norm(weight) for weight in decayed])
    l2 = weight_decay / num_replicas * ops.sum(norms)
    return {**losses, "loss": losses["loss"] + l2, L2: l2}


def check_gradients(paths: Sequence[str], gradients: Sequence[Tensor | None]) -> list[Tensor]:
    """Returns the gradients of the variables with these paths.

    Raises:
        ValueError: lists the variables without a gradient.
    """
    missing = [path for path, found in zip(paths, gradients, strict=True) if found is None]
    if missing:
        raise ValueError(
            f"the loss does not depend on {', '.join(missing)}: freeze what is not used, or "
            "leave it out of the model"
        )
    return [gradient for gradient in gradients if gradient is not None]


def global_norm(
    gradients: Sequence[Tensor],
    half_squared_norm: Callable[[Tensor], Tensor] = half_squared_norm,
) -> Tensor:
    """Returns the norm of all gradients together, a scalar."""
    norms = ops.stack([half_squared_norm(gradient) for gradient in gradients])
    return ops.sqrt(2.0 * ops.sum(norms))


def clip_factor(norm: Tensor, clip_norm: float | None) -> Tensor:
    """Returns what gradients of that global norm are multiplied by.

    1 up to `clip_norm` and with None; above, what brings the norm down to `clip_norm`. NaN if the
    norm is not finite: then every gradient of every replica becomes NaN, although the overflow may
    have been in one. Loss scaling relies on that, since Keras looks at one replica only.
    """
    factor = 1.0 if clip_norm is None else clip_norm / ops.maximum(norm, clip_norm)
    return factor + (norm - norm)


def has_failed(losses: Tensor, norm: Tensor, loss_scale: Tensor | None = None) -> Tensor:
    """Returns whether a step must end the run, a bool scalar.

    Args:
        losses: [L], summed over the replicas.
        norm: global norm of the gradients. If it is not finite the step has failed, unless the
            loss scale is to blame: then the step is skipped and the scale is halved.
        loss_scale: None without loss scaling.
    """
    norm_is_fine = ops.isfinite(norm)
    if loss_scale is not None:
        norm_is_fine = ops.logical_or(norm_is_fine, loss_scale >= SMALLEST_LOSS_SCALE)
    return ops.logical_not(ops.logical_and(ops.all(ops.isfinite(losses)), norm_is_fine))


def average_decay(step: Tensor, decay: float) -> Tensor:
    """Returns the part of a moving average that step `step`, counted from 0, keeps.

    min(decay, step / (step + 9)): nothing at first, so that neither the initial weights nor those
    before a restore linger; `decay` after some steps.
    """
    step = ops.cast(step, "float32")
    return ops.minimum(decay, step / (step + AVERAGE_WARMUP_STEPS))


def update_average(average: Tensor, weight: Tensor, kept: Tensor) -> Tensor:
    """Returns `kept * average + (1 - kept) * weight` in the dtype of the average."""
    kept = ops.cast(kept, average.dtype)
    return kept * average + (1 - kept) * weight
