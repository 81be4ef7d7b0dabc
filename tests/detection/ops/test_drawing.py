"""Labelled boxes: colours at known places, sizes, and that the arguments stay unchanged."""

import numpy as np
import pytest

from tpudet.detection.ops.drawing import draw_boxes, draw_comparison
from tpudet.trainkit.pages.drawing import class_colour

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


def test_a_box_that_reaches_beyond_all_numbers_of_opencv_is_cut_off() -> None:
    drawn = draw_boxes(GRAY, np.array([[-1e38, 30, 3.4e38, 1e30]]), ["cat"], [RED])
    assert (drawn[60, 30] == RED).all()
    assert (drawn[60, 100] == 90).all()


def three_boxes(texts: list[str]) -> np.ndarray:
    """Three boxes that begin at nearly one point."""
    image = np.full((600, 800, 3), 90, np.uint8)
    boxes = np.array([[200, 200, 400, 500], [203, 203, 380, 480], [206, 200, 300, 420]])
    colours = [(255, 255, 0), (0, 255, 255), GREEN]  # bright: letters on them are black
    return draw_boxes(image, boxes, texts, colours)


def test_labels_of_boxes_at_one_place_do_not_hide_each_other() -> None:
    texts = ["platelet 0.91", "red cell 0.80", "white cell 0.55"]
    together = three_boxes(texts)
    for k in range(3):
        alone = three_boxes([text if i == k else "" for i, text in enumerate(texts)])
        # The same number of dark pixels: all letters of the label can be read.
        others = three_boxes(["" if i == k else text for i, text in enumerate(texts)])
        dark = [(one.max(axis=2) < 60).sum() for one in (alone, others, together)]
        assert dark[0] > 100
        assert dark[2] == dark[0] + dark[1]


def test_in_a_crowd_every_label_that_is_drawn_can_be_read() -> None:
    def dark(boxes: np.ndarray) -> int:
        image = np.full((300, 400, 3), 90, np.uint8)
        drawn = draw_boxes(image, boxes, ["car 0.88"] * len(boxes), [GREEN] * len(boxes))
        return int((drawn.max(axis=2) < 60).sum())

    corners = np.random.default_rng(0).uniform((100, 100), (180, 220), (60, 2))
    crowd = np.concatenate([corners, corners + 24], axis=1)
    letters = dark(crowd[:1])
    labels, part_of_a_label = divmod(dark(crowd), letters)
    assert part_of_a_label == 0
    assert 20 < labels < 60  # there is no room for all


def test_lines_grow_with_the_image() -> None:
    def thickness(side: int) -> int:
        image = np.zeros((side, side, 3), np.uint8)
        box = np.array([[side // 4, side // 4, side // 2, side // 2]])
        drawn = draw_boxes(image, box, [""], [GREEN])
        return int((drawn[:, 3 * side // 8] == GREEN).all(axis=1).sum()) // 2

    assert [thickness(side) for side in (64, 640, 1400, 2800)] == [3, 3, 5, 9]


@pytest.mark.parametrize("box", [[0, 0, 60, 60], [-20, 120, 200, 400], [118, 158, 119, 159]])
def test_a_label_stays_inside_the_image(box: list[int]) -> None:
    bare = draw_boxes(GRAY, np.array([box]), [""], [GREEN])
    labelled = draw_boxes(GRAY, np.array([box]), ["zebra 0.50"], [GREEN])
    assert labelled.shape == GRAY.shape
    assert (bare != labelled).any(axis=-1).sum() > 400  # the whole patch, not a clipped corner


def test_every_box_needs_a_text_and_a_colour() -> None:
    with pytest.raises(ValueError, match="1 boxes, 0 texts, 1 colours"):
        draw_boxes(GRAY, np.zeros((1, 4)), [], [RED])


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
    assert (ys.max(), xs.min(), xs.max()) == (301, 179, 421)  # lines are 3 pixels wide
    assert (both[24 + 300, 484 + 200] == class_colour(2)).all()
