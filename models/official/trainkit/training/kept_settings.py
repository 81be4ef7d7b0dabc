"""The settings that a run keeps when it resumes, because its checkpoints mean nothing without them.

They are those that give weights their meaning (`trainkit.weights.settings`) and the kind of the
optimizer, where the slots of another hold something else.
"""

from collections.abc import Callable
from typing import Any

from tpudet.trainkit.config.decode import ConfigError
from tpudet.trainkit.training.checkpoint_match import start_from
from tpudet.trainkit.training.checkpoints import list_checkpoints
from tpudet.trainkit.training.model_dir import config_to_resume
from tpudet.trainkit.training.optimizer_slots import have_same_slots
from tpudet.trainkit.weights.settings import changed_settings
from tpudet.trainkit.weights.tensor_bundle import BEST_FOLDER


def require_kept_settings(
    model_dir: str, config: Any, load_config: Callable[[str], Any], *, trains: bool
) -> None:
    """Refuses a config with which the checkpoints of a model_dir would predict something else.

    Args:
        model_dir: of the run; may not exist yet.
        config: of the run without `auto`, a dataclass with `train` and `weights_settings`.
        load_config: reads the `config.yaml` at a path.
        trains: whether the run would train on, and so take over the optimizer's state.

    Raises:
        ConfigError: lists each setting that differs, with both values.
    """
    path = config_to_resume(model_dir)
    if path is None:
        return
    before = load_config(path)
    changes = changed_settings(before.weights_settings, config.weights_settings)
    own = list_checkpoints(model_dir)
    kinds = [run.train.optimizer.kind for run in (before, config)]
    if trains and own and not have_same_slots(*kinds):
        changes.append("train.optimizer.kind: " + " -> ".join(kinds))
    if not changes:
        return
    best = f"{model_dir}/{BEST_FOLDER}"
    newest = (own or list_checkpoints(best))[-1].prefix
    only_best = "" if own else f"remove {best}, if its training is discarded, "
    raise ConfigError(
        f"{newest} was trained with other settings, and means something else with these:\n  "
        + "\n  ".join(changes)
        + f"\nKeep those of {path}, {only_best}{start_from(newest)}"
    )
