import numpy as np
import pytest

from detection.modeling.identity_neck import IdentityNeck


def test_levels_pass_untouched():
    neck = IdentityNeck(min_level=3, max_level=4)
    features = {level: np.full((1, 2, 2, 6), float(level)) for level in (2, 3, 4, 5)}
    neck.build({2: (1, 2, 2, 4), 3: (1, 2, 2, 6), 4: (1, 2, 2, 6), 5: (1, 2, 2, 9)})
    found = neck(features)
    assert neck.num_filters == 6
    assert list(found) == [3, 4]
    assert not neck.variables
    for level, value in found.items():
        np.testing.assert_array_equal(value, features[level])


def test_unlike_channels_are_refused():
    neck = IdentityNeck(min_level=4, max_level=5)
    with pytest.raises(ValueError, match=r"differ: \{4: 1024, 5: 2048\} by level"):
        neck.build({4: (None, None, None, 1024), 5: (None, None, None, 2048)})
    with pytest.raises(ValueError, match="min_level=5 and max_level=6; allowed is"):
        IdentityNeck(min_level=5, max_level=6)
