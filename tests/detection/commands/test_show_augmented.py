"""The grid of training images: its size, what is on it, and what goes wrong in words."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.commands.show_augmented import main
from tpudet.detection.inspection.augmented_images import draw_row, image_name
from tpudet.detection.types import Batch
from tpudet.trainkit.pages.drawing import class_colour
from tpudet.trainkit.records import RECORDS_PER_SHARD_LIMIT, write_shard

QUICKSTART = Path(__file__).parents[3] / "configs/yaml/retinanet/quickstart.yaml"
SMALL = ["--set", "data.canvas_size=[128, 128]"]
MIXED = "data.augmentations=[{kind: mosaic}, {kind: mixup}, {kind: color}, {kind: grid_mask}]"


def test_a_grid_is_written_whole(
    sample_part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "grid.png"
    flags = [*SMALL, "--set", f"data.directory={sample_part}", "--set", MIXED]
    flags += ["--set", "train.batch_size=1000000"]  # no more images are prepared than drawn
    assert main(["quickstart", "--output", str(output), "--num_images", "5", *flags]) == 0
    assert capsys.readouterr().out == f"Wrote {output}\n"
    image = cv2.imread(str(output))
    assert image is not None
    # 3 x 2 cells of 480 x 480, less a black margin, below captions of 24 pixels, with gaps of 4.
    height, width = image.shape[:2]
    assert height == 2 * 504 + 4
    assert 3 * 240 < width <= 3 * 480 + 2 * 4
    assert image[524:, -200:].min() > 200  # the sixth cell is empty, which is not dark
    assert (image[24:504].max(axis=(0, 2)) < 60).sum() < width / 10
    assert [path.name for path in tmp_path.iterdir()] == ["grid.png"]


def test_images_are_named_by_their_file_else_by_their_id_else_by_their_place(tmp_path) -> None:
    def example(**texts: str) -> bytes:
        features = {
            f"image/{key}": tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
            for key, text in texts.items()
        }
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    shards = [str(tmp_path / f"{number}.tfrecord") for number in range(2)]
    write_shard(shards[0], [example(filename="a.jpg", source_id="1"), example(source_id="2")])
    write_shard(shards[1], [example()])
    records = (0, 1, RECORDS_PER_SHARD_LIMIT)
    names = [image_name(shards, record) for record in records]
    assert names == ["a.jpg", "2", "shard 1, record 0"]


def test_boxes_have_the_colours_of_their_classes_where_the_batch_has_them() -> None:
    row = Batch(
        images=np.zeros([480, 480, 3], np.uint8),
        boxes=np.array([[100, 50, 300, 200], [10, 300, 60, 400], [0, 0, 0, 0]], np.float32),
        classes=np.array([2, 1, 0]),
        is_crowd=np.array([False, True, False]),
        records=np.int64(2**32 + 5),
        original_sizes=np.ones(2),
        scales=np.ones(2),
        offsets=np.zeros(2),
    )
    drawn = draw_row(row, ["cat", "dog"], "a.jpg")
    assert drawn.shape == (504, 480, 3)
    for number, (y1, x1, y2, x2) in ((2, (100, 50, 300, 200)), (1, (10, 300, 60, 400))):
        places = np.argwhere((drawn[24:] == class_colour(number)).all(axis=-1))
        corner = np.abs(places - [y2, x2]).sum(axis=1).min()
        assert corner <= 1
        assert np.abs(places - [y2, x1]).sum(axis=1).min() <= 1
        assert places.max(axis=0) == pytest.approx([y2, x2], abs=1)
        assert y1 < y2


def test_the_black_margin_of_the_canvas_is_cut_off_but_no_box() -> None:
    image = np.zeros([480, 480, 3], np.uint8)
    image[:300, :400] = 90
    row = Batch(
        images=image,
        boxes=np.array([[10, 10, 320, 50], [0, 0, 0, 0]], np.float32),
        classes=np.array([1, 0]),
        is_crowd=np.zeros(2, bool),
        records=np.int64(0),
        original_sizes=np.ones(2),
        scales=np.ones(2),
        offsets=np.zeros(2),
        masks=np.packbits(np.zeros((2, 480, 480), np.uint8), axis=-1),
    )
    factor = 480 / 400  # small images are enlarged
    assert draw_row(row, ["cat"], "a.jpg").shape == (24 + round(320 * factor), 480, 3)


def test_masks_are_filled_and_outlined() -> None:
    masks = np.zeros((2, 480, 480), np.uint8)
    masks[0, 200:300, 100:150] = 1
    row = Batch(
        images=np.full([480, 480, 3], 90, np.uint8),
        boxes=np.array([[200, 100, 300, 200], [0, 0, 0, 0]], np.float32),
        classes=np.array([1, 0]),
        is_crowd=np.zeros(2, bool),
        records=np.int64(0),
        original_sizes=np.ones(2),
        scales=np.ones(2),
        offsets=np.zeros(2),
        masks=np.packbits(masks, axis=-1),
    )
    drawn = draw_row(row, ["cat"], "a.jpg")[24:]
    colour = np.array(class_colour(1))
    np.testing.assert_allclose(drawn[250, 125], 90 + 0.35 * (colour - 90), atol=1)
    np.testing.assert_array_equal(drawn[250, 149], colour)
    np.testing.assert_array_equal(drawn[250, 160], 90)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--set", "data.augmentations=[{kind: mosiac}]"], "mosaic"),
        (["--set", "data.augmentations=[{kind: copy_paste}]"], "copy_paste needs masks"),
        (["--set", "data.train_split=nothing"], "nothing"),
    ],
)
def test_mistakes_are_one_message(
    sample_part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    common = [*SMALL, "--num_images", "1", "--set", f"data.directory={sample_part}"]
    assert main([str(QUICKSTART), *common, *flags]) == 2
    message = capsys.readouterr().err
    assert "tpudet show_augmented: " in message
    assert words in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("no/such/folder/grid.png", "no/such/folder/grid.png cannot be written"),
        ("config.yaml", "config.yaml exists and is not a drawing of tpudet"),
    ],
)
def test_an_output_is_refused_before_the_images_are_read(
    output: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text("train: {}\n")
    with pytest.raises(SystemExit) as stopped:
        main([str(QUICKSTART), "--output", output])
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err
    assert Path("config.yaml").read_text() == "train: {}\n"


def test_no_images_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["quickstart", "--num_images", "0"])
    assert stopped.value.code == 2
    assert "--num_images: `0` is not an integer of at least 1" in capsys.readouterr().err
