"""The state of an optimizer by the keys that checkpoints have for it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import keras

# Keras's names of the slots that the optimizers of `optimizers` keep.
SLOTS = ("momentum", "velocity")
# Optimizers whose slots of one name hold the same: one continues what another has begun. Adam's
# momentum is a mean of gradients, RMSprop's a step of the weights, which contains the rate.
_INTERCHANGEABLE = (("adam", "adamw"), ("momentum", "lars"))


def have_same_slots(one: str, other: str) -> bool:
    """Returns whether an optimizer may take over the state of another; both by their `kind`."""
    return one == other or any({one, other} <= set(kinds) for kinds in _INTERCHANGEABLE)


def slot_variables(
    optimizer: keras.Optimizer, trained: Sequence[keras.Variable]
) -> dict[str, keras.Variable]:
    """Returns the state of a built optimizer by checkpoint key, without `iterations`.

    A slot's key is `<variable path>/<slot>`, a loss scale's is `loss_scale/<name>`. Keras names
    the slot of `stem/conv/kernel` "stem_conv_kernel_momentum". Two paths may give the same name
    (`a/b_c` and `a_b/c`); slots are created in the order of the variables, which distinguishes
    them.

    Raises:
        ValueError: the optimizer has state that belongs to no known variable or slot; it would be
            lost in a checkpoint.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        own = {
            f"loss_scale/{variable.name}": variable
            for variable in (optimizer.dynamic_scale, optimizer.step_counter)
        }
        return own | slot_variables(optimizer.inner_optimizer, trained)
    waiting = _paths_by_slot_name(variable.path for variable in trained)
    slots = {}
    unknown = []
    for variable in optimizer.variables:
        if variable is optimizer.iterations:
            continue
        candidates = waiting.get(variable.name)
        if candidates:
            slots[f"{candidates.pop(0)}/{variable.name.rsplit('_', 1)[-1]}"] = variable
        else:
            unknown.append(variable.name)
    if unknown:
        raise ValueError(
            f"{type(optimizer).__name__} keeps {', '.join(unknown)}, which belong to no known slot "
            f"of a variable; the slots are {', '.join(SLOTS)}. Create the optimizer with the "
            "classes of tpudet.trainkit.training.optimizers"
        )
    return slots


def _paths_by_slot_name(paths: Iterable[str]) -> dict[str, list[str]]:
    waiting = defaultdict(list)
    for path in paths:
        for slot in SLOTS:
            waiting[f"{path.replace('/', '_')}_{slot}"].append(path)
    return waiting
