"""Every part imports only what its row of the table allows, so that reading goes one way."""

import ast
from pathlib import Path

import pytest

OFFICIAL = Path(__file__).parents[1] / "models/official"
# Parts of detection and the other parts of detection that they may import.
ALLOWED = {
    "types": set(),
    "config": {"data_config", "model_config", "train_config"},
    "data_config": set(),
    "model_config": set(),
    "train_config": set(),
    "submission": set(),
    "drawing": set(),
    "html_page": set(),
    "ops": {"types"},
    "data": {"config", "ops", "types"},
    "evaluation": {"config", "data", "drawing", "ops", "submission", "types"},
    "preparation": {"config", "data", "drawing", "html_page", "ops", "submission", "types"},
    "inspection": {
        *("data", "drawing", "evaluation", "html_page", "image_folder"),
        *("preparation", "submission", "types"),
    },
    "modeling": {"config", "ops", "types"},
    "export": {"config", "data", "submission", "types"},
    "image_folder": set(),
    "saved_detector": {"submission"},
    "prediction_stream": {"image_folder", "saved_detector", "submission"},
    "augmented_views": {"data", "saved_detector", "submission"},
    "model_list": {"saved_detector"},
    "prediction_work": {
        "augmented_views",
        "image_folder",
        "prediction_stream",
        "saved_detector",
        "submission",
    },
    "inference": {
        "augmented_views",
        "image_folder",
        "prediction_stream",
        "prediction_work",
        "saved_detector",
        "submission",
    },
    "benchmark_input": {"build_augmentations", "data", "data_config", "types"},
    "weights_origin": {"config", "submission", "train_config"},
    "legacy": set(),
}
# experiment.py joins the parts, and the commands stand above everything.
FREE = {
    "__init__",
    "build_augmentations",
    "build_detector",
    "build_optimizer",
    "command_line",
    "evaluate",
    "experiment",
    "import_legacy_config",
    "model_dir",
    "export_model",
    "plot_schedule",
    "pretrained",
    "predict",
    "show_augmented",
    "show_config",
    "train",
    "write_zoo",
}
# Whole packages that a part must not need: submissions are merged on machines without TensorFlow,
# and a model is the same code on every backend.
FORBIDDEN_PACKAGES = {
    "detection/submission": {"keras", "trainkit"},
    "detection/preparation": {"keras"},
    "detection/inspection": {"keras"},
    "detection/ops": {"tensorflow", "jax"},
    "detection/modeling": {"tensorflow", "jax"},
    "trainkit/backbones": {"tensorflow", "jax"},
    "trainkit": {"detection", "classification"},
    "detection": {"classification"},
    "classification": {"detection"},
}
MODULES = sorted(OFFICIAL.rglob("*.py"))


def imported_names(path: Path) -> set[str]:
    """Returns the dotted names of every import in the file, wherever it stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import; write the full name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(OFFICIAL)))
def test_module_imports_only_what_its_layer_allows(path: Path) -> None:
    place = path.relative_to(OFFICIAL)
    names = imported_names(path)
    for part, packages in FORBIDDEN_PACKAGES.items():
        if place.is_relative_to(part):
            found = {name for name in names if name.split(".")[0] in packages}
            assert not found, f"{place}: {part} may not import {sorted(found)}"
    if place.parts[0] != "detection" or place.parts[1].removesuffix(".py") in FREE:
        return
    part = place.parts[1].removesuffix(".py")
    parts = {name.split(".")[1] for name in names if name.startswith("detection.")}
    extra = parts - ALLOWED[part] - {part}
    assert not extra, f"{place}: {part} may not import {sorted(extra)}"
    if part == "modeling":
        kit = {name for name in names if name.startswith("trainkit.")}
        allowed = ("tpudet.trainkit.backbones", "tpudet.trainkit.weights.name_maps.recipes")
        assert all(name.startswith(allowed) for name in kit), kit
    if part in {"types", "ops"}:
        assert not {name for name in names if name.startswith("trainkit")}


def test_at_most_110_modules_are_reachable_from_train() -> None:
    by_name = {".".join(path.relative_to(OFFICIAL).with_suffix("").parts): path for path in MODULES}
    waiting, seen = ["tpudet.detection.commands.train"], set()
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in seen:
            seen.add(name)
            for imported in imported_names(by_name[name]):
                waiting += [imported, imported.rpartition(".")[0]]
    assert len(seen) > 20
    # 60 that a run goes through, and what a config may choose instead: 18 augmentations, 18 of
    # weights from anywhere, 9 of backbones, necks, losses and matching.
    assert len(seen) <= 110, sorted(seen)
