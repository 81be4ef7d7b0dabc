import numpy as np
import pytest

from detection.modeling.heads import RetinaNetHead


def pyramid():
    rng = np.random.default_rng(0)
    return {
        level: rng.normal(size=(2, 64 // 2**level, 32 // 2**level, 8)).astype(np.float32)
        for level in (3, 4)
    }


def build(**settings):
    head = RetinaNetHead(
        num_classes=5, anchors_per_location=2, max_level=4, num_filters=8, num_convs=2, **settings
    )
    head.build((None, None, None, 8))
    return head


@pytest.mark.parametrize("kind", ["full", "separable"])
def test_answers_begin_at_the_prior(kind):
    head = build(kind=kind)
    answers = head(pyramid())
    assert answers.class_logits.shape == (2, (8 * 4 + 4 * 2) * 2, 5)
    assert answers.box_deltas.shape == (2, (8 * 4 + 4 * 2) * 2, 4)
    np.testing.assert_array_equal(head.class_predict.bias.numpy(), np.float32(-np.log(99.0)))
    if kind == "full":
        scores = 1 / (1 + np.exp(-np.array(answers.class_logits)))
        np.testing.assert_allclose(scores, 0.01, rtol=1e-2)
        np.testing.assert_allclose(answers.box_deltas, 0.0, atol=1e-2)


def test_answers_come_row_by_row_place_by_place():
    head = build()
    one_hot = np.zeros(head.box_predict.kernel.shape, np.float32)
    head.box_predict.kernel.assign(one_hot)
    head.box_predict.bias.assign(np.arange(8.0))  # 2 anchors of 4 deltas
    deltas = np.array(head(pyramid()).box_deltas)
    np.testing.assert_array_equal(deltas, np.tile(np.arange(8.0).reshape(2, 4), (2, 40, 1)))
    # Mark one pixel of level 3: row 2, column 1 changes only places that its kernel reaches.
    features = pyramid()
    head.class_predict.kernel.assign(np.ones(head.class_predict.kernel.shape))
    before = np.array(head(features).class_logits)
    features[3][0, 7, 3] += 10.0
    changed = np.unique(np.nonzero(np.array(head(features).class_logits) != before)[1])
    # Three 3x3 convolutions reach 3 pixels: rows 4 to 7, all 4 columns, 2 anchors each.
    np.testing.assert_array_equal(changed, np.arange(4 * 4 * 2, 8 * 4 * 2))


def test_levels_share_kernels_but_not_norms():
    paths = {variable.path for variable in build().trainable_variables}
    assert sum(path.endswith("kernel") for path in paths) == 2 * 2 + 2
    assert {"head/class_tower/conv0/kernel", "head/box_tower/norm1_level4/gamma"} <= paths
    assert sum(path.endswith("gamma") for path in paths) == 2 * 2 * 2
