"""Claims on a model_dir: one trainer and one evaluator."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tpudet.trainkit.files.claims import ClaimError
from tpudet.trainkit.training.modes import Mode, claim_model_dir

HoldClaim = Callable[[Path], AbstractContextManager[int]]


@pytest.mark.parametrize(
    ("held", "refused", "allowed"),
    [
        ("train", ("train", "train_and_eval"), "eval"),
        ("eval", ("eval", "train_and_eval"), "train"),
    ],
)
def test_a_second_process_is_told_who_writes(
    held: str, refused: tuple[Mode, ...], allowed: Mode, tmp_path: Path, hold_claim: HoldClaim
) -> None:
    with hold_claim(tmp_path / f"{held}.claim.json") as process:
        for mode in refused:
            with (
                pytest.raises(ClaimError, match=f"process {process} on .* since"),
                claim_model_dir(str(tmp_path), mode, is_chief=True),
            ):
                raise AssertionError("two processes in one folder")
        with claim_model_dir(str(tmp_path), allowed, is_chief=True) as verify:
            verify()
        with claim_model_dir(str(tmp_path), refused[0], is_chief=False) as verify:
            verify()  # a worker beside the chief writes nothing
    assert list(tmp_path.iterdir()) == []
