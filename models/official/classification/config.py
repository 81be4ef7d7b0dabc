"""The experiment file of a classifier as frozen dataclasses: every key with its unit and its range.

The number of classes is not a key: it is the number of rows in the data set's classes.csv.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

from tpudet.classification.data.config import DataConfig
from tpudet.classification.modeling.config import ClassifierConfig, SigmoidLossConfig
from tpudet.trainkit.config.decode import load_config
from tpudet.trainkit.config.ranges import Count, check
from tpudet.trainkit.training.config import TrainConfig, stop_at_rule
from tpudet.trainkit.weights.settings import FREE_BACKBONE_KEYS, Setting, settings_of_model

# Of `model`: what only steers training. All other keys give the weights their meaning.
FREE_MODEL_KEYS = (
    *FREE_BACKBONE_KEYS,
    "dropout",
    "loss.label_smoothing",
    "loss.class_weights",
)
# Parts of the model whose weights a section concerns; pixels and backbone concern all.
_PARTS = {"top_filters": ("classifier",), "loss": ("classifier",)}

Metric = Literal["top1", "top5", "macro_f1", "micro_f1", "negative_loss"]


@dataclass(frozen=True, kw_only=True)
class EvaluationScheduleConfig:
    """When the whole of data.eval_split is evaluated, and what is kept."""

    batch_size: Count = 64  # images
    every_steps: Count = 1000
    best_metric: Metric = "top1"  # best/ holds the checkpoint with the highest value
    # Of each evaluation in training, spread evenly over the split; null: all. `tpudet evaluate`
    # always takes all.
    max_images: Count | None = None

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """When a run is evaluated."""

    schedule: EvaluationScheduleConfig = field(default_factory=EvaluationScheduleConfig)


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """One experiment."""

    task: Literal["classification"]  # told apart by it from the experiments of detectors
    model: ClassifierConfig = field(default_factory=ClassifierConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        check(self, stop_at_rule(self.train, get_args(Metric)))

    @property
    def measured(self) -> str:
        """Of what an evaluation is, in words."""
        number = self.evaluation.schedule.max_images
        loss = self.model.loss
        weights = loss.class_weights if isinstance(loss, SigmoidLossConfig) else ()
        classes = f"classes weighted {':'.join(f'{weight:g}' for weight in weights)}"
        return (
            f"{self.data.eval_split}, {f'at most {number}' if number else 'all'} images, "
            f"{classes if weights else 'all classes alike'}"
        )

    @property
    def weights_settings(self) -> tuple[Setting, ...]:
        """The settings that give the weights their meaning: a run that resumes keeps them."""
        windows = Setting("data.windows", self.data.windows)  # the colours of a CT slice
        model = settings_of_model(asdict(self.model), free=FREE_MODEL_KEYS, parts=_PARTS)
        return (windows, *model)


def load_experiment(path: str, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Reads the `config.yaml` of a model_dir.

    Args:
        path: the file.
        overrides: `KEY=VALUE` strings.

    Raises:
        ConfigError: lists every mistake.
    """
    return load_config(ExperimentConfig, path, overrides=overrides)
