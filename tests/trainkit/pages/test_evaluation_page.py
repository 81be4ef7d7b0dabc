"""Parts of the page about an evaluation."""

import numpy as np

from tpudet.trainkit.pages.evaluation_page import ConfusedPair, confused_pairs


def test_the_wrong_cells_of_a_confusion_matrix_come_by_their_count() -> None:
    confusions = np.array([[9, 1, 0], [2, 8, 1], [0, 0, 3]])
    assert confused_pairs(confusions, ["a", "b", "c"]) == [
        ConfusedPair("b", "a", 2),
        ConfusedPair("a", "b", 1),
        ConfusedPair("b", "c", 1),
    ]
    assert confusions[0, 0] == 9  # the argument stays
