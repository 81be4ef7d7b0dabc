"""Pictures to look at: colours at known places, sizes, nothing drawn upon."""

import cv2
import numpy as np
import pytest

from tpudet.trainkit.pages.drawing import (
    add_caption,
    class_colour,
    draw_boxes,
    draw_comparison,
    encode_png,
    image_grid,
)

GRAY = np.full((120, 160, 3), 90, np.uint8)
RED, GREEN = (255, 0, 0), (0, 255, 0)


def test_boxes_lie_where_they_should_and_the_image_is_left_alone() -> None:
    drawn = draw_boxes(
        GRAY, np.array([[40, 30, 100, 90], [60, 50, 110, 150]]), ["", ""], [RED, GREEN]
    )
    assert tuple(drawn[40, 60]) == RED
    assert tuple(drawn[70, 30]) == RED
    assert tuple(drawn[110, 120]) == GREEN
    assert tuple(drawn[60, 90]) == RED  # where they cross, the first box lies on top
    assert tuple(drawn[50, 50]) == (90, 90, 90)
    assert (GRAY == 90).all()


@pytest.mark.parametrize("box", [[0, 0, 60, 60], [-20, 120, 200, 400], [118, 158, 119, 159]])
def test_a_label_stays_inside_the_image(box: list[int]) -> None:
    bare = draw_boxes(GRAY, np.array([box]), [""], [GREEN])
    labelled = draw_boxes(GRAY, np.array([box]), ["zebra 0.50"], [GREEN])
    assert labelled.shape == GRAY.shape
    assert (bare != labelled).any(axis=-1).sum() > 400  # the whole patch, not a clipped corner


def test_neighbouring_classes_differ_in_colour() -> None:
    colours = np.array([class_colour(k) for k in range(1, 601)], float)
    assert np.abs(np.diff(colours, axis=0)).sum(axis=1).min() > 200


def test_numbers_must_agree() -> None:
    with pytest.raises(ValueError, match="1 boxes, 0 texts, 1 colours"):
        draw_boxes(GRAY, np.zeros((1, 4)), [], [RED])
    with pytest.raises(ValueError, match="0 images in 2 columns"):
        image_grid([], 2)


def test_grid_cells_have_the_size_of_the_largest_image() -> None:
    images = [np.full((h, w, 3), v, np.uint8) for h, w, v in ((10, 30, 1), (20, 10, 2), (5, 5, 3))]
    grid = image_grid(images, columns=2)
    assert grid.shape == (20 + 4 + 20, 30 + 4 + 30, 3)
    for (y, x), value in {(0, 0): 1, (9, 29): 1, (0, 34): 2, (19, 43): 2, (24, 0): 3}.items():
        assert (grid[y, x] == value).all()
    assert (grid[10:20, :30] == grid[20, 0]).all()
    assert image_grid(images[:1], columns=5).shape == (10, 30, 3)


def test_comparison_leaves_out_padding_and_low_scores() -> None:
    def compare(scores: list[float], classes: list[int]) -> np.ndarray:
        return draw_comparison(
            GRAY,
            truth_boxes=np.array([[10, 10, 50, 50.0], [0, 0, 0, 0]]),
            truth_classes=np.array([1, 0]),
            boxes=np.array([[40, 60, 100, 140.0]] * 2),
            scores=np.array(scores),
            classes=np.array(classes),
            class_names=["cat", "dog"],
            min_score=0.3,
            title="a",
        )

    width = 480 + 4 + 480
    empty = compare([0.0, 0.0], [0, 0])
    both = compare([0.9, 0.1], [2, 1])
    assert empty.shape == both.shape == (24 + 360, width, 3)
    assert (empty[:, :480] == both[:, :480]).all()  # the same ground truth
    drawn = (empty[24:, 484:] != both[24:, 484:]).any(axis=-1)
    ys, xs = np.nonzero(drawn)  # box times 3: y 120..300, x 180..420, and a label above it
    assert (ys.max(), xs.min(), xs.max()) == (300, 180, 420)
    assert (both[24 + 300, 484 + 200] == class_colour(2)).all()


def test_a_png_holds_the_image_and_captions_the_text() -> None:
    image = add_caption(np.tile(np.arange(160, dtype=np.uint8)[None, :, None], (60, 1, 3)), "text")
    decoded = cv2.imdecode(np.frombuffer(encode_png(image), np.uint8), cv2.IMREAD_COLOR_RGB)
    np.testing.assert_array_equal(decoded, image)
    assert image[:-60].max() > 200
