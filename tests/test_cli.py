"""The command tpudet: its table of verbs, its messages, and that --help imports nothing heavy."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tpudet import cli

ROOT = Path(__file__).parents[1]
COMMANDS = [ROOT / f"models/official/{task}/commands" for task in ("detection", "classification")]
HEAVY = ("tensorflow", "keras", "jax", "numpy", "pandas", "pyarrow", "cv2", "matplotlib", "h5py")
# Prints the exit code and the help of each verb; fails where a heavy package is imported, whatever
# the speed of the machine.
GUARDED = f"""
import contextlib, io, json, sys

class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise AssertionError(f"{{verb}} --help imports {{name}}")

sys.meta_path.insert(0, Guard())
verb = "no verb"
from tpudet.cli import main
helps = {{}}
for verb in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            code = main([verb, "--help"])
        except SystemExit as ended:
            code = ended.code
    helps[verb] = code, printed.getvalue()
print(json.dumps(helps))
"""


def tpudet(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tpudet", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_table_lists_the_files_of_commands() -> None:
    files = [
        {path.stem for path in folder.glob("[a-z]*.py") if not path.stem.endswith("_arguments")}
        for folder in COMMANDS
    ]
    assert set(cli.VERBS) == files[0] | files[1]
    assert set(cli.BOTH_TASKS) == files[0] & files[1]
    assert set(cli.GROUPS["Classify images"]) == files[1] - files[0]
    assert len(set(cli.VERBS)) == len(cli.VERBS)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_a_main_and_is_no_script(verb: str) -> None:
    for path in (folder / f"{verb}.py" for folder in COMMANDS):
        source = path.read_text() if path.exists() else ""
        functions = {
            node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)
        }
        assert not source or "main" in functions
        assert "__main__" not in source


def test_help_imports_nothing_heavy() -> None:
    """All verbs in one process: what one of them imported would have stopped it."""
    command = [sys.executable, "-c", GUARDED, *cli.VERBS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    helps = json.loads(done.stdout)
    assert list(helps) == cli.VERBS
    for verb, (code, text) in helps.items():
        assert code == 0
        assert text.startswith(f"usage: tpudet {verb} ")


@pytest.mark.parametrize("flag", ["--help", "-h", "help", None])
def test_help_lists_every_verb_once(
    flag: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["tpudet"])
    assert cli.main([flag] if flag else None) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.findall(r"^  (\w+)  ", "\n".join(lines), re.M) == cli.VERBS
    assert max(map(len, lines)) <= 100


def test_version_names_the_commit_of_the_source_tree() -> None:
    done = tpudet("--version")
    assert re.fullmatch(r"tpudet \d+\.\d+\.\d+( \([0-9a-f]{40}(\+changes)?\))?\n", done.stdout)


def test_an_unknown_verb_is_wrong_usage() -> None:
    done = tpudet("make-tfrecords", "--split", "train")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "tpudet: unknown verb `make-tfrecords`; did you mean `make_tfrecords`? "
        "`tpudet --help` lists the verbs\n"
    )
    assert "did you mean" not in tpudet("xyz").stderr


def test_a_missing_tensorflow_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(cli.importlib, "import_module", missing)
    package = "tensorflow.io"
    assert cli.main(["train"]) == 2
    message = capsys.readouterr().err
    assert message == (
        "tpudet: train needs tensorflow: pip install tpudet with the extra [cpu], [cuda] or [tpu]\n"
    )
    package = "tpudet.missing"
    with pytest.raises(ModuleNotFoundError):
        cli.main(["train"])


def test_completion_knows_verbs_and_their_flags(tmp_path: Path) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "tpudet").write_text(f'#!/bin/sh\nexec {sys.executable} -m tpudet "$@"\n')
    (bin_folder / "tpudet").chmod(0o755)
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}

    def complete(*words: str) -> list[str]:
        script = 'source <(tpudet completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))\n'
        script += '_tpudet; printf "%s\\n" "${COMPREPLY[@]}"'
        command = ["bash", "-c", script, "bash", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return done.stdout.split()

    assert complete("tpudet", "list_") == ["list_runs", "list_checkpoint", "list_weights"]
    assert complete("tpudet", "list_runs", "--wa") == ["--watch"]
    assert complete("tpudet", "convert_model", "--i") == ["--int8"]
    assert complete("tpudet", "list_runs", "out") == []


def test_completion_for_zsh_uses_that_of_bash() -> None:
    script = tpudet("completion", "zsh").stdout
    assert script.splitlines()[0] == "autoload -U +X bashcompinit && bashcompinit"
    assert script.partition("\n")[2] == tpudet("completion", "bash").stdout
    if zsh := shutil.which("zsh"):
        subprocess.run([zsh, "-n"], input=script, text=True, check=True)
    assert tpudet("completion", "fish").returncode == 2


_UNUSED_BY_EXPORTS = ["matplotlib", "matplotlib.pyplot", "scipy", "sklearn"]


@pytest.mark.parametrize(
    ("words", "left_out"),
    [
        ("train --config quickstart", ["jax", "matplotlib.pyplot", "sklearn"]),
        ("train --backend=jax", ["matplotlib.pyplot", "sklearn"]),
        ("evaluate --backend jax", ["matplotlib.pyplot", "sklearn"]),
        ("plan --config quickstart", ["matplotlib.pyplot", "sklearn"]),
        ("export --model_dir run", ["jax", *_UNUSED_BY_EXPORTS]),
        ("predict a.parquet model", ["jax", "keras", *_UNUSED_BY_EXPORTS]),
        ("classify a.csv model", ["jax", "keras", *_UNUSED_BY_EXPORTS]),
        ("kfold_split boxes.csv", []),  # stratification is scikit-learn's
        ("convert_model model", []),  # with TensorFlow Lite
    ],
)
def test_libraries_that_nobody_uses_are_not_imported(
    monkeypatch: pytest.MonkeyPatch, words: str, left_out: list[str]
) -> None:
    loaded: dict[str, object] = {}
    finders: list[object] = []
    monkeypatch.setattr(cli.sys, "modules", loaded)
    monkeypatch.setattr(cli.sys, "meta_path", finders)
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda name: None)  # libtpu
    verb, *arguments = words.split()
    cli.leave_out_imports(verb, arguments)
    assert sorted(loaded) == left_out
    assert not any(loaded.values())
    assert bool(finders) == ("scipy" in left_out)  # pandas, as the next test sees


@pytest.mark.parametrize(
    ("verb", "module"),
    [
        ("train", "detection.experiment"),
        ("export", "detection.experiment"),
        ("export", "classification.experiment"),
        ("predict", "detection.inference.run"),
        ("classify", "classification.inference.classify"),
    ],
)
def test_tensorflow_and_keras_do_without_them(verb: str, module: str) -> None:
    program = f"""
import importlib, sys
from tpudet import cli
cli.leave_out_imports({verb!r}, [])
import tensorflow
importlib.import_module("tpudet.{module}")
unused = ["jax", "jaxlib", "matplotlib.pyplot", "sklearn", "scipy.stats"]
if {verb!r} != "train":
    unused += ["matplotlib", "pandas", "scipy"]
if {verb!r} in ("predict", "classify"):
    unused.append("keras")
print([name for name in unused if sys.modules.get(name)])
"""
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "[]"


def test_a_model_dir_in_a_bucket_tells_its_task_without_a_choice_of_the_backend() -> None:
    """Whoever reads a config in a bucket imports TensorFlow, which would import Keras."""
    program = """
import os, sys
from tpudet import cli
from tpudet.trainkit.files import storage
storage.write_text("ram://run/config.yaml", "task: classification\\n")
print(*(cli._find_task("evaluate", ["--model_dir", f"ram://run{end}"]) for end in ("", "/")))
assert "tensorflow" in sys.modules and "keras" not in sys.modules
os.environ["KERAS_BACKEND"] = "jax"
import keras
print(keras.backend.backend())
"""
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["classification", "classification", "jax"]


def test_mistakes_are_said_before_the_seconds_of_importing_tensorflow() -> None:
    program = """
import sys
for package in ("tensorflow", "keras", "jax"):
    sys.modules[package] = None  # to import it fails
from tpudet.cli import main
for line in sys.stdin.read().splitlines():
    print(f"{main(line.split())} {line}")
"""
    verbs = (
        "train --model_dir /no/run",
        "find_lr",
        "show_augmented",
        "show_config",
        "plan --tpu v5e-8",
    )
    mistakes = "--set data.max_instnces=1 --set train.batch_sise=1"
    lines = [
        f"{verb} {config} {mistakes}"
        for config in ("quickstart", "effnetlite0", "--config effnetlite0")
        for verb in (*verbs, "benchmark_train")
    ]
    lines += ["evaluate --model_dir /no/such", "export --model_dir /no/such --export_root /tmp"]
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, check=False
    )
    codes = [line for line in done.stdout.splitlines() if "VERSION" not in line]
    assert codes == [f"2 {line}" for line in lines], done.stderr
    assert done.stderr.count("did you mean `batch_size`?") == len(lines) - 2
    assert done.stderr.count("is not a model_dir: it has no config.yaml") == 2


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_what_a_full_disk_does_not_take_is_an_error(argument: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tpudet", argument],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "tpudet: standard output: No space left on device\n"
