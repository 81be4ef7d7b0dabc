"""Imports run one way: each line of the rule is read from left to right."""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "models/official"

# A part imports only what stands to its right; parts in braces may import each other, not in a
# circle.
DETECTION = (
    "commands → {experiment, profiling} → build_detector → "
    "{inference, evaluation, inspection, preparation} → "
    "config → {submission, modeling, data} → ops → types"
)
TRAINKIT = (
    "profiling_commands → experiment_commands → training → "
    "{weights, backbones, record_splits, record_manifest, input_errors, images, "
    "image_folder, saved_model, shuffled_records} → "
    "records → "
    "{config, files, jobs, pages, backend_arguments, training_arguments, command_line, screen, "
    "class_list, evaluation_results, "
    "saved_model_files, saved_model_ops, source_version} → "
    "{errors, types, keras_ops, cpu, tpu_machine, fused_norm, record_numbers}"
)
CLASSIFICATION = (
    "commands → {experiment, profiling} → build_classifier → "
    "{inference, evaluation, preparation} → config → {modeling, data} → types"
)
PACKAGES = {"detection": DETECTION, "classification": CLASSIFICATION, "trainkit": TRAINKIT}
TASKS = ("detection", "classification")  # import trainkit, never each other
ALONE = ("detection/legacy",)  # imports nothing else of its task
WITHOUT = {  # part: packages that it does not import anywhere
    "detection/submission": {"keras", "tensorflow"},
    "detection/preparation": {"keras"},
    "detection/ops": {"tensorflow", "jax"},
    "detection/modeling": {"tensorflow", "jax"},
    "classification/preparation": {"keras"},
    "classification/modeling": {"tensorflow", "jax"},
    "trainkit/backbones": {"tensorflow", "jax"},
}
# Of trainkit.
LIGHT = ["types", "errors", "command_line", "class_list", "config", "files", "jobs", "pages"]

MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def imported_names(path: Path) -> set[str]:
    """The dotted names of every import in a file, wherever it stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import; write the full name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def part_of(name: str, package: str) -> str | None:
    """The part of a package that a dotted name belongs to."""
    prefix = f"tpudet.{package}."
    return name.removeprefix(prefix).split(".")[0] if name.startswith(prefix) else None


def read_rule(rule: str) -> list[set[str]]:
    return [set(re.findall(r"\w+", group)) for group in rule.split("→")]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_module_imports_only_what_stands_below_it(path: Path) -> None:
    names = imported_names(path)
    for part, packages in WITHOUT.items():
        if path.is_relative_to(part):
            found = {name for name in names if name.split(".")[0] in packages}
            assert not found, f"{path}: {part} may not import {sorted(found)}"
    top = str(path).partition("/")[0]
    forbidden = TASKS if top == "trainkit" else set(TASKS) - {top}
    if top in ("trainkit", *TASKS):
        prefixes = tuple(f"tpudet.{task}" for task in forbidden)
        foreign = {name for name in names if name.startswith(prefixes)}
        assert not foreign, f"{path}: {top} may not import {sorted(foreign)}"
    for package, rule in PACKAGES.items():
        if top == package and len(path.parts) > 1:
            check_rule(path, package, rule, {part_of(name, package) for name in names} - {None})


def check_rule(path: Path, package: str, rule: str, imported: set[str | None]) -> None:
    part = path.parts[1].removesuffix(".py")
    if part == "__init__":
        return
    if f"{package}/{part}" in ALONE:
        assert imported <= {part}, f"{path}: {part} may not import {sorted(map(str, imported))}"
        return
    groups = read_rule(rule)
    rank = next((k for k, group in enumerate(groups) if part in group), None)
    assert rank is not None, f"{path}: {part} has no place in the rule"
    allowed = set().union(*groups[rank:]) if len(groups[rank]) > 1 else {part}.union(*groups[rank:])
    if package == "detection" and part == "commands":
        allowed |= {"legacy"}
    assert imported <= allowed, (
        f"{path}: {part} may not import {sorted(map(str, imported - allowed))}"
    )


@pytest.mark.parametrize(("package", "rule"), PACKAGES.items())
def test_parts_in_braces_do_not_import_each_other_in_a_circle(package: str, rule: str) -> None:
    arrows: dict[str, set[str]] = {}
    for path in MODULES:
        if path.parts[0] == package and len(path.parts) > 1:
            part = path.parts[1].removesuffix(".py")
            found = {part_of(name, package) for name in imported_names(path)}
            arrows.setdefault(part, set()).update(name for name in found if name and name != part)
    for group in read_rule(rule):
        within = {part: arrows.get(part, set()) & group for part in group}
        try:
            graphlib.TopologicalSorter(within).prepare()
        except graphlib.CycleError as error:
            pytest.fail(f"{package}: each imports the one before it: {' → '.join(error.args[1])}")


def test_no_module_imports_a_command() -> None:
    for path in MODULES:
        if path.parts[1:2] != ("commands",) and path.name != "cli.py":
            commands = {name for name in imported_names(path) if ".commands." in name}
            assert not commands, f"{path} imports {sorted(commands)}"


def test_light_parts_import_neither_keras_nor_tensorflow() -> None:
    names = [
        ".".join(("tpudet", *path.with_suffix("").parts))
        for path in MODULES
        if path.parts[0] == "trainkit"
        and len(path.parts) > 1
        and path.parts[1].removesuffix(".py") in LIGHT
        and path.name not in ("__init__.py", "ray_pool.py")
    ]
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        "print(sorted({'keras', 'tensorflow', 'jax'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
