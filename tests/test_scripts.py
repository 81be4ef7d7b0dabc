"""The scripts: what each calls, that it is short, and what it says without the package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
PYTHON_SCRIPTS = sorted(str(path.relative_to(SCRIPTS)) for path in SCRIPTS.rglob("*.py"))
SHELL_SCRIPTS = sorted(
    str(path.relative_to(SCRIPTS))
    for path in SCRIPTS.rglob("*.sh")
    if path.name not in ("tpudet.sh", "train_preemptible.sh")  # the latter runs without tpudet
)
EXPORT = "export --model_dir s/saved/v-a --export_root s/final --step best"
TRAIN = "train --config v --model_dir s/saved/v-{0} --log_file s/logs/v-{0}.log "
TRAIN += "--set data.directory=s/converted/{0}"
CALLS = {
    "train_on_dataset.sh a v --mode train": TRAIN.format("a") + " --mode train",
    "train_on_fold.sh a v 3 -x": TRAIN.format("a_fold_3") + " --model_dir s/saved/v-a-fold_3 -x",
    "export_saved_model.sh a v best": EXPORT,
    "export_saved_model.sh a v best -x": f"{EXPORT} -x",
    "export_saved_model.sh a v best 640 -x": f"{EXPORT} --resolution 640 -x",
    "export_fold.sh a v 3 best 640 -x": EXPORT.replace("v-a", "v-a-fold_3")
    + " --resolution 640 -x",
    "export_all_folds.sh --step 5": "export_models --all_folds --step 5",
    "prepare_datasets.sh --dry_run": "prepare_datasets --dry_run",
    "prepare_folds.sh 2 --dry_run": "prepare_folds 2 --dry_run",
    **{f"prepare_tfrecords_v{n}.sh -x": f"prepare_tfrecords v{n} -x" for n in range(1, 6)},
    "prepare_tfrecords_v2_removed_crowd.sh": "prepare_tfrecords v2",
    "prepare_tfrecords_v3_balanced.sh": "prepare_tfrecords v3",
    "prepare_tfrecords_v4_pseudo_labels.sh": "prepare_tfrecords v4",
    "prepare_tfrecords_v5_balanced_pseudo_labels.sh": "prepare_tfrecords v5",
    "upload_files_to_gcs.sh one two": "upload one two",
    "inference/gen_all_subs.sh -f": "gen_all_subs -f",
    "inference/merge_all_subs.sh part_0 -f": "merge_all_subs part_0 -f",
}
VERBS = {"inference": "predict", "partial_inference": "predict", "cloud_inference": "predict"}


def run(script: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [SCRIPTS / script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **variables},
    )


def test_every_shell_script_is_called() -> None:
    assert {call.split()[0] for call in CALLS} == set(SHELL_SCRIPTS)


@pytest.mark.parametrize("call", CALLS)
def test_a_shell_script_calls_a_verb(call: str) -> None:
    script, *arguments = call.split()
    done = run(script, *arguments, PYTHON="echo", STORAGE="s/")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"-m tpudet {CALLS[call]}\n"


def test_the_log_stays_on_this_machine_when_the_storage_is_a_bucket() -> None:
    done = run("train_on_dataset.sh", "a", "v", PYTHON="echo", STORAGE="gs://bucket")
    assert "--model_dir gs://bucket/saved/v-a --log_file output/logs/v-a.log" in done.stdout


def usage(script: str) -> str:
    """The first comment of a script."""
    comment = (SCRIPTS / script).read_text().split("\n", 1)[1].partition("\nsource ")[0]
    return comment.replace("# ", "") + "\n"


@pytest.mark.parametrize(
    "call",
    [
        *("train_on_dataset.sh", "train_on_dataset.sh a", "train_on_dataset.sh --mode train"),
        *("train_on_fold.sh a v", "train_on_fold.sh a v one", "train_on_fold.sh a v -x"),
        *("export_saved_model.sh a v", "export_saved_model.sh -x", "export_saved_model.sh"),
        *("export_fold.sh a v 3", "export_fold.sh a v x best", "prepare_datasets.sh v1"),
        *("prepare_folds.sh", "prepare_folds.sh --num_folds", "upload_files_to_gcs.sh"),
    ],
)
def test_a_shell_script_prints_its_comment_as_usage(call: str) -> None:
    script, *arguments = call.split()
    done = run(script, *arguments, PYTHON="echo")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", usage(script))


@pytest.mark.parametrize(
    "call",
    [
        *("train_on_dataset.sh --help", "train_on_fold.sh a v -h", "export_saved_model.sh -h"),
        *("export_fold.sh --help", "prepare_folds.sh --help"),
    ],
)
def test_a_shell_script_answers_help_without_an_error(call: str) -> None:
    script, *arguments = call.split()
    done = run(script, *arguments, PYTHON="echo")
    assert (done.returncode, done.stdout, done.stderr) == (0, usage(script), "")


def test_sources_of_the_kernels_that_have_changed_are_installed_again() -> None:
    root = SCRIPTS.parent
    for path in (root / "models/official/detection/submission/fusion").glob("*.p[yx][xd]"):
        command = ["make", "--dry-run", "--what-if", str(path.relative_to(root)), "install"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
        assert "--editable" in done.stdout, path


@pytest.mark.parametrize("script", PYTHON_SCRIPTS)
def test_a_python_script_is_a_verb(script: str) -> None:
    done = run(script, "--help", PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    name = Path(script).stem
    own = name == "partial_inference"  # which has arguments of its own
    prog = f"{name}.py" if own else f"tpudet {VERBS.get(name, name)}"
    assert done.stdout.startswith(f"usage: {prog} ")


def test_partial_inference_counts_from_0() -> None:
    """The predecessor's part 0 of 4 is shard 1/4, and the file is named after the model."""
    code = (
        "import sys, runpy, tpudet.cli; tpudet.cli.main = lambda: print(sys.argv[1:]); "
        "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    )
    for more, target in (([], "m-640.pkl"), (["--destination", "p.parquet"], "p.parquet")):
        script = [SCRIPTS / "inference/partial_inference.py", "models/m-640/", "0", "4", *more]
        command = [sys.executable, "-c", code, *script, "--images", "i"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        words = ["predict", target, "models/m-640/", "--shard", "1/4", "--images", "i"]
        assert done.stdout == f"{words}\n"


@pytest.mark.parametrize("script", [*PYTHON_SCRIPTS, *SHELL_SCRIPTS])
def test_a_script_is_short_and_executable(script: str) -> None:
    path = SCRIPTS / script
    assert os.access(path, os.X_OK)
    lines = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
    assert len(lines) <= 17


@pytest.mark.parametrize("script", [*PYTHON_SCRIPTS, *SHELL_SCRIPTS])
def test_without_the_package_a_script_says_so_in_one_sentence(script: str, tmp_path: Path) -> None:
    bare = tmp_path / "python"  # sees no installed package
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    command = [bare, SCRIPTS / script] if script.endswith(".py") else [SCRIPTS / script]
    call = next((call for call in CALLS if call.split()[0] == script), script)
    command += call.split()[1:]
    environment = {**os.environ, "PYTHON": str(bare), "PYTHONPATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("tpudet is not installed in ")
    assert "`make install`" in done.stderr
