"""The shipped experiments: one VERSION each, all of the predecessor's 134, EfficientDet's table."""

import dataclasses
import re
import runpy
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from detection.command_line import find_config
from detection.config import EvalConfig, ExperimentConfig
from detection.import_legacy_config import converted_text
from detection.model_config import BiFPNConfig, EfficientNetConfig
from trainkit.config import decode, load_config
from trainkit.yaml_tree import parse_tree

CONFIGS = sorted((Path(__file__).parents[2] / "configs/yaml").rglob("*.yaml"))
LEGACY = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("legacy_files.py"))))
ROWS = {row["file"]: row for row in LEGACY.read_rows()}


class Place(NamedTuple):
    """Where one of the predecessor's experiments is found."""

    path: Path
    overrides: list[str]


def stands_for() -> list[tuple[str, Place]]:
    """Reads the lists in the files' comments: a name and what has to be set for it."""
    found = []
    for path in CONFIGS:
        listed = path.read_text().partition("# Stands for")[2].split("\nbase:")[0]
        lines = re.sub(r" \\\n# +", " ", listed).splitlines()[1:]
        for name, *flags in map(shlex.split, (line.removeprefix("#") for line in lines)):
            assert flags[::2] == ["--set"] * (len(flags) // 2), name
            found.append((name, Place(path, flags[1::2])))
    return found


PLACES = dict(stands_for())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_file_has_a_version_of_its_own(path: Path) -> None:
    for version in (path.stem, path.stem.partition("_")[0]):
        assert Path(find_config(version, CONFIGS[0].parents[1])) == path


def test_each_of_the_134_is_listed_once() -> None:
    names = [name for name, _ in stands_for()]
    assert sorted(names) == sorted(ROWS)
    assert len({place.path for place in PLACES.values()}) == 43


@pytest.mark.parametrize("name", ROWS)
def test_a_shipped_file_with_its_overrides_is_the_converted_one(name: str) -> None:
    """All but the checkpoint, which lay in a bucket; without one nothing is frozen.

    The predecessor's script evaluated every 5000 steps, which no file says.
    """
    path, overrides = PLACES[name]
    shipped = load_config(ExperimentConfig, str(path), overrides=overrides)
    text, _ = converted_text(LEGACY.legacy_yaml(ROWS[name]), f"{name}.yaml")
    wanted = decode(ExperimentConfig, parse_tree(text, name))
    freeze = wanted.train.freeze if wanted.train.weights else ()
    train = dataclasses.replace(wanted.train, weights=None, freeze=freeze)
    evaluated = dataclasses.replace(wanted.eval, every_steps=5000)
    assert shipped == dataclasses.replace(wanted, train=train, eval=evaluated)
    needs_weights = "--set train.weights.path=FILE" in path.read_text()
    assert needs_weights == bool(wanted.train.weights)


# arXiv 1911.09070, table 1: canvas, backbone, BiFPN channels and layers, layers of the head.
@pytest.mark.parametrize(
    ("version", "canvas", "variant", "channels", "layers", "convs"),
    [
        ("d0", 512, "b0", 64, 3, 3),
        ("d1", 640, "b1", 88, 4, 3),
        ("d2", 768, "b2", 112, 5, 3),
        ("d3", 896, "b3", 160, 6, 4),
        ("d4", 1024, "b4", 224, 7, 4),
        ("d5", 1280, "b5", 288, 7, 4),
        ("d6", 1280, "b6", 384, 8, 5),
        ("d7", 1536, "b6", 384, 8, 5),
    ],
)
def test_efficientdet_has_the_numbers_of_the_paper(
    version: str, canvas: int, variant: str, channels: int, layers: int, convs: int
) -> None:
    config = load_config(ExperimentConfig, find_config(version))
    model = config.model
    assert config.data.canvas_size == (canvas, canvas)
    assert isinstance(model.backbone, EfficientNetConfig)
    assert isinstance(model.neck, BiFPNConfig)
    assert model.backbone.variant == variant
    assert (model.neck.num_filters, model.neck.num_repeats) == (channels, layers)
    head = (model.head.num_filters, model.head.num_convs, model.head.separable)
    assert head == (channels, convs, True)
    assert model.head.activation == "silu"
    assert config.eval.batch_size == EvalConfig().batch_size


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_published_figure_says_that_it_was_not_reproduced(path: Path) -> None:
    expect = path.read_text().partition("# Expect:")[2].split("\n# Stands")[0]
    words = " ".join(expect.split("\nbase:")[0].split("\nmodel:")[0].replace("\n#", " ").split())
    if re.match(r"COCO AP \d", words):
        assert "not reproduced here" in words
    else:
        assert re.search("no published|AP50|Results", words), words


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_command_begins_where_the_quoted_figure_does(path: Path) -> None:
    purpose, _, rest = path.read_text().partition("# Command:")
    command, _, expect = rest.partition("# Expect:")
    has_weights = "--set train.weights.path=FILE" in command
    assert has_weights or "from ImageNet weights" not in expect
    assert not has_weights or "random initialisation" not in purpose
