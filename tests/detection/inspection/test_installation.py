"""`tpudet check` where a library cannot start."""

import pytest

from tpudet.detection.inspection import installation
from tpudet.detection.inspection.installation import describe_installation


@pytest.mark.parametrize(("library", "prevents"), [("tensorflow", True), ("jax", False)])
def test_a_library_that_cannot_start_is_a_line_of_the_report(
    monkeypatch: pytest.MonkeyPatch, library: str, prevents: bool
) -> None:
    def fail() -> list[str]:
        raise AssertionError("no driver")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    for name in ("tensorflow", "jax"):
        find = fail if name == library else lambda: ["CPU", "CPU"]
        monkeypatch.setattr(installation, f"_{name}_devices", find)
    lines = {fact.name.lower(): fact for fact in describe_installation()}
    fact = lines.pop(f"{library} sees")
    assert fact.value == "nothing, it cannot start: AssertionError('no driver')"
    assert fact.prevents_training == prevents
    (other,) = (fact.value for name, fact in lines.items() if name.endswith(" sees"))
    assert other == "2 CPU"
