"""Low precision: the gradient of every variable of every kind of layer, against float32."""

import numpy as np
import pytest
from benchmarks import gradient_precision


@pytest.mark.parametrize("name", gradient_precision.layers())
@pytest.mark.parametrize("policy", gradient_precision.POLICIES)
def test_the_gradients_of_a_layer_are_within_one_per_cent(name: str, policy: str) -> None:
    build = gradient_precision.layers()[name]
    errors = gradient_precision.gradient_errors(build, policy, side=48, batch_size=4)
    assert errors
    assert max(errors.values()) < 0.01, errors


def test_prints_a_row_per_variable(capsys: pytest.CaptureFixture[str]) -> None:
    assert gradient_precision.main(["--side", "8", "--batch_size", "1"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "| layer | variable | mixed_bfloat16 | mixed_float16 |"
    assert len(rows) == 32 + 2
    assert all(row.count("%") == 2 for row in rows[2:])


def test_noise_by_hand() -> None:
    """Errors 1/5 and 2/5; the means are (3, 4) and (3, 4.5), whose product is 27 of 25."""
    exact = np.array([[3.0, 4.0], [3.0, 4.0]])
    noise = gradient_precision.gradient_noise(exact, exact + np.array([[0.0, -1.0], [0.0, 2.0]]))
    assert noise.relative_error == pytest.approx(0.3)
    assert noise.share == pytest.approx(27 / 25)
