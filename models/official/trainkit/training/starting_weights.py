"""Opens the weights that a run starts from, and says what its model must be like to take them."""

from tpudet.trainkit.files.storage import read_text
from tpudet.trainkit.training.checkpoints import list_checkpoints
from tpudet.trainkit.weights.config import WeightsConfig
from tpudet.trainkit.weights.families import TPUDET, Family
from tpudet.trainkit.weights.pretrained import Pretrained, open_pretrained, read_family


def open_starting_weights(
    weights: WeightsConfig | None, model_dir: str | None, *, loads_weights: bool
) -> tuple[Family, Pretrained | None]:
    """Opens `train.weights` if they are needed.

    A run that resumes keeps what its config.yaml says, and needs the weights no more. Only one
    with a checkpoint does: an attempt that saved nothing leaves a config.yaml that binds nobody.

    Args:
        weights: which ones; None: random initialisation.
        model_dir: of the run; may not exist yet, and is None where nothing is saved.
        loads_weights: whether the run will load the weights.

    Returns:
        What the model's `auto` settings become, and the opened weights; None if the run does not
        load any.

    Raises:
        WeightsError: the weights cannot be read, or are of no known family.
    """
    earlier = f"{model_dir}/config.yaml"
    resumes = bool(model_dir and list_checkpoints(model_dir)) and read_text(earlier) is not None
    expected = read_family(earlier) if resumes else None
    pretrained = None
    if weights and (loads_weights or expected is None):
        pretrained = open_pretrained(weights)
        expected = expected or pretrained.family
    return expected or TPUDET, pretrained if loads_weights else None
