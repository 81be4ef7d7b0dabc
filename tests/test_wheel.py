"""The wheel alone, in an empty folder, runs the chain from drawn images to a submission."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "configs", "models")
TINY = {
    "model.min_level": "3",
    "model.max_level": "3",
    "data.canvas_size": "[64, 64]",
    "train.weights": "null",
    "train.freeze": "[]",
    "train.total_steps": "5",
    "train.batch_size": "2",
    "train.iterations_per_loop": "5",
    "train.log_every_steps": "5",
    "train.checkpoint_every_steps": "5",
    "train.learning_rate.warmup_steps": "2",
    "evaluation.schedule.batch_size": "2",
    "evaluation.schedule.every_steps": "5",
    "evaluation.schedule.num_images": "1",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's files, built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    built = shutil.ignore_patterns("__pycache__", "*.so", "*.c", "*.egg-info")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=built)
        else:
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    link = source / "build/typed/tpudet"  # as in a clone that was somewhere else before
    link.parent.mkdir(parents=True)
    link.symlink_to(folder / "before/models/official")
    # The kernel is optional; compiling it again would take longer than all the rest.
    environment = {**os.environ, "CC": "false"}
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source]
    subprocess.run(build, check=True, capture_output=True, env=environment)
    assert link.readlink() == Path("../../models/official")
    (wheel,) = folder.glob("tpudet-*.whl")
    site = folder / "site"
    install = [*pip, "install", "--no-deps", "--target", site, wheel]
    subprocess.run(install, check=True, capture_output=True)
    shutil.rmtree(source)
    return site


@pytest.fixture
def tpudet(installed: Path, tmp_path: Path):
    """Runs the installed command in an empty folder."""
    # PYTHONPATH comes before the finder of an editable install.
    environment = {**os.environ, "PYTHONPATH": str(installed), "TPUDET_PLAIN_KERNEL": "1"}
    for variable in ("STORAGE", "DATA"):
        environment.pop(variable, None)

    def run(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-W", "ignore", "-m", "tpudet", *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_the_wheel_carries_configs_presets_and_every_verb(tpudet, installed: Path) -> None:
    shipped = {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.yaml")}
    folder = installed / "tpudet/configs"
    assert {path.relative_to(folder) for path in folder.rglob("*.yaml")} == shipped
    assert (installed / "tpudet/py.typed").is_file()
    modules = {path.relative_to(installed / "tpudet") for path in installed.rglob("*.py")}
    sources = (ROOT / "models/official").rglob("*.py")
    assert {path.relative_to(ROOT / "models/official") for path in sources} <= modules
    unknown = tpudet("show_config", "--config", "quickstar", code=2)
    assert f"names no file below {folder}/yaml. The nearest are quickstart," in unknown
    assert "drop_steps" in tpudet("show_config", "--config", "1.0.1")


# Six processes, most of which import TensorFlow; detection/commands/test_train.py runs the chain in
# one, from the sources.
@pytest.mark.slow
def test_the_wheel_runs_the_whole_chain(tpudet, tmp_path: Path) -> None:
    flags = [text for key, value in TINY.items() for text in ("--set", f"{key}={value}")]
    out = tpudet("demo", "--num_images", "16", *flags)
    folder = tmp_path / "output/demo"
    assert f"Submission:  {folder.relative_to(tmp_path)}/predictions/demo-sample.csv" in out
    lines = (folder / "predictions/demo-sample.csv").read_text().splitlines()
    assert lines[0] == "ImageId,PredictionString"
    assert len(lines) > 1
    assert (folder / "saved/demo-sample/metrics.jsonl").is_file()
    assert (folder / "final/demo-sample-64/saved_model.pb").is_file()
