import numpy as np

from tpudet.detection.modeling.fpn import IdentityNeck


def test_a_level_passes_untouched():
    neck = IdentityNeck(level=4)
    features = {level: np.full((1, 2, 2, 6), float(level)) for level in (2, 3, 4)}
    neck.build({2: (1, 2, 2, 4), 3: (1, 2, 2, 5), 4: (1, 2, 2, 6)})
    found = neck(features)
    assert neck.num_filters == 6
    assert list(found) == [4]
    assert not neck.variables
    np.testing.assert_array_equal(found[4], features[4])
