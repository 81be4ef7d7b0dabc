"""The command `tpudet VERB ARGUMENTS`: finds the verb's module and runs its `main`.

A verb is a file of tpudet.detection.commands or of tpudet.classification.commands; one that both
have is for the task of its config. Nothing is imported but the one that runs.
"""

import argparse
import gc
import importlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Sequence

EXIT_WRONG_USAGE = 2  # as trainkit.command_line has it, which `tpudet --help` does without
_OBJECTS_BEFORE_COLLECTION = 50_000  # new ones, that Python collects garbage after; by itself 700
GROUPS: dict[str, dict[str, str]] = {
    "Prepare data": {
        "make_sample_set": "draw a small data set to try everything with",
        "make_tfrecords": "write TFRecords from COCO, VOC, YOLO, Open Images, CSV or Parquet",
        "check_data": "check annotations and images without writing anything",
        "describe_dataset": "write an HTML page about TFRecords: numbers, charts, sample images",
        "export_annotations": "write a split of a prepared set as COCO ground truth",
        "upload": "copy prepared files to a bucket or folder and verify the copies",
    },
    "Prepare the Open Images challenge": {
        "prepare_datasets": "run all steps from the challenge's CSVs to class groups and box CSVs",
        "prepare_tfrecords": "write the TFRecords of every part of a preset",
        "prepare_folds": "write one fold of every part as TFRecords",
        "filter_dataset": "drop group, depicted or inside boxes from a box CSV",
        "build_leaf_classes_list": "list the classes that have no subclasses",
        "split_classes": "split the classes into parts by their number of images",
        "build_validation": "choose validation images for each class",
        "gen_coco_val_json": "write a box CSV as COCO JSON",
        "gen_mask_truth": "write boxes and mask files as one CSV to score submissions by",
        "gen_tfrecords": "write balanced TFRecords of one part from a box CSV",
        "kfold_split": "split a box CSV into stratified folds",
        "add_pseudo_labels": "add confident predictions to a box CSV",
        "add_data_from_testset": "add confident predictions on the test images to a box CSV",
    },
    "Classify images": {
        "split_folders": "divide class folders into train, val and test",
        "images_to_tfrecords": "write TFRecords from class folders",
        "cache_samples": "write the training samples of a config decoded, to train from",
        "benchmark_input": "time the input of a config: basic, optimized, cached",
        "classify": "predict the classes of images with an exported classifier",
        "dicom_to_tfrecords": "write TFRecords from CT slices in DICOM, with RSNA's labels",
        "gen_rsna_sub": "write a submission to the RSNA haemorrhage challenge",
    },
    "Train": {
        "plan": "compile for a TPU without one: does it fit, how fast can it be",
        "train": "train a detector or classifier; the same command resumes",
        "find_lr": "find a learning rate: it grows until the loss diverges",
        "evaluate": "evaluate one checkpoint",
        "export": "export a checkpoint as a SavedModel",
        "export_models": "export the models of a list, or all folds",
        "convert_model": "convert a SavedModel to LiteRT or ONNX, float32 or int8",
        "benchmark_train": "time the training steps of a config, with and without reading data",
        "list_runs": "list training runs with their progress and scores",
    },
    "Predict and submit": {
        "predict": "run SavedModels on folders, images, URLs or videos",
        "join_predicted_parts": "join the predictions of shards",
        "convert_predictions": "write predictions as COCO results, YOLO text files or a CSV",
        "gen_sub": "write the submission CSV of a predictions file",
        "gen_all_subs": "write the submission of every predictions file",
        "join_subs": "join submissions for different classes",
        "merge_subs": "merge submissions of several models",
        "merge_all_subs": "merge the submissions of each part, then join the parts",
        "trim_sub_by_threshold": "drop predictions below a score",
        "trim_sub_by_num_of_predicts": "keep the best N predictions",
        "trim_sub_decimal_digits": "round coordinates to fewer decimals",
        "add_parents": "repeat predictions for the ancestors of their class",
        "drop_parents": "keep only predictions of leaf classes",
    },
    "Inspect": {
        "show_augmented": "draw training images as the network gets them",
        "draw_predictions": "draw predictions and ground truth, with an HTML page",
        "evaluate_submission": "score a submission by the rules of the Open Images Challenge",
        "compare_submissions": "compare two submissions class by class",
    },
    "Configs and weights": {
        "show_config": "print a config with all its values",
        "plot_schedule": "plot the learning rate of a config",
        "import_legacy_config": "convert a RetinaNet or Mask R-CNN config of tensorflow/tpu",
        "list_checkpoint": "list the tensors of a file of weights",
        "list_weights": "list the pretrained weights that are fetched by name",
    },
    "This installation": {
        "check": "show versions, devices and folders, and whether training can run",
        "demo": "run the whole chain on a sample set, within minutes on two cores",
    },
}
VERBS = [verb for verbs in GROUPS.values() for verb in verbs]
BOTH_TASKS = (
    *("train", "find_lr", "evaluate", "export", "show_augmented", "show_config", "plan"),
    "benchmark_train",
)
# zsh runs it through its emulation of bash's completion.
_COMPLETION = r"""_tpudet() {
    local word=${COMP_WORDS[COMP_CWORD]} words=
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="VERBS"
    elif [[ $word == -* ]]; then
        words=$(tpudet "${COMP_WORDS[1]}" --help 2>/dev/null)
        words=$(grep -oE -e '--[a-z0-9_-]+' <<< "$words" | sort -u)
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _tpudet tpudet
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `tpudet`; returns the exit code of the verb, 2 for wrong usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    if "--verbose" in words:
        words.remove("--verbose")
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
    verb, *arguments = words or ["--help"]
    if verb in ("--help", "-h", "help"):
        return _print(_help())
    if verb == "--version":
        return _print(f"{_version()}\n")
    if verb == "completion":
        return _print_completion(arguments)
    if verb not in VERBS:
        import difflib

        near = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean `{near[0]}`? " if near else ""
        return _fail(f"unknown verb `{verb}`; {hint}`tpudet --help` lists the verbs")
    if argv is None:  # the process is this command's
        from tpudet.trainkit.screen import prepare_screen

        prepare_screen()
        # What is imported stays; to look through it again and again took a tenth of the start.
        gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
        if verb in GROUPS["Predict and submit"] and verb != "predict":
            # Numbers from text need no linear algebra, whose threads take 20 ms to start.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        leave_out_imports(verb, arguments)
    code = _run(verb, arguments)
    if argv is None:
        gc.freeze()  # or Python looks through all of it once more at its end
    return code


def _run(verb: str, arguments: Sequence[str]) -> int:
    # Read when TensorFlow is imported. Its notes would bury the output of the verb.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        task = _find_task(verb, arguments)
        return importlib.import_module(f"tpudet.{task}.commands.{verb}").main(arguments)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("tensorflow", "jax"):
            raise
        extras = "[cpu], [cuda] or [tpu]" if package == "tensorflow" else "[jax] or [tpu]"
        return _fail(f"{verb} needs {package}: pip install tpudet with the extra {extras}")


def leave_out_imports(verb: str, arguments: Sequence[str]) -> None:
    """Makes unavailable what TensorFlow, Keras or PyArrow would import and the verb does not use.

    A third of the time until TensorFlow is imported goes to scikit-learn and Matplotlib's pyplot,
    for wrappers and drawings of Keras, and to JAX, for a converter of TensorFlow Lite; a fifth goes
    to Keras itself, which SavedModels do not need, and another to pandas, SciPy and Matplotlib,
    which only training and evaluation use.
    """
    if verb not in (*BOTH_TASKS, "export_models", "predict", "classify"):
        return
    may_use_jax = importlib.util.find_spec("libtpu") or any("jax" in word for word in arguments)
    unused = ["sklearn", "matplotlib.pyplot"]
    if verb in ("export", "predict", "classify"):
        unused += ["matplotlib", "scipy"]
        sys.meta_path.insert(0, _WithoutPandas())
    if not may_use_jax and verb != "plan":
        unused.append("jax")
    if verb in ("predict", "classify"):  # SavedModels are graphs
        unused.append("keras")
    for library in unused:
        sys.modules.setdefault(library, None)  # pyright: ignore[reportArgumentType]


class _WithoutPandas(importlib.abc.MetaPathFinder):
    """Finds no pandas; PyArrow takes None in sys.modules for pandas itself."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not used by this verb", name=fullname)


def _find_task(verb: str, arguments: Sequence[str]) -> str:
    """The task of a verb; of one that both have, that of its CONFIG, else of its --model_dir."""
    if verb in GROUPS["Classify images"]:
        return "classification"
    if verb not in BOTH_TASKS:
        return "detection"
    from tpudet.trainkit.config.find import find_task
    from tpudet.trainkit.errors import UserError

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config", nargs="?")
    parser.add_argument("--model_dir", nargs="?")
    known, others = parser.parse_known_args(list(arguments))
    model_dir = known.model_dir and known.model_dir.rstrip("/")
    run = model_dir and f"{model_dir}/config.yaml"
    takes_config = verb not in ("evaluate", "export")
    named = [known.config, *others, run] if takes_config else [run]
    for config in filter(None, named):
        try:
            return find_task(config)
        except (UserError, OSError):  # no config, or one of which the command says what is wrong
            continue
    return "detection"


def _print(text: str) -> int:
    try:
        print(text, end="", flush=True)
    except OSError as error:
        # Python flushes it once more at exit, which would end with code 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # whoever read the output has left
            return 0
        return _fail(f"standard output: {error.strerror}")
    return 0


def _fail(message: str) -> int:
    print(f"tpudet: {message}", file=sys.stderr)
    return EXIT_WRONG_USAGE


def _help() -> str:
    width = max(map(len, VERBS))
    lines = [
        "usage: tpudet VERB ARGUMENTS",
        "       tpudet VERB --help | --version | completion bash|zsh",
        "",
        "Object detection from raw boxes to a ranked submission, on TPU, GPU or CPU.",
        "Every verb takes --verbose: it shows TensorFlow's own notes, too.",
    ]
    for group, verbs in GROUPS.items():
        lines += ["", f"{group}:", *(f"  {verb:{width}}  {line}" for verb, line in verbs.items())]
    return "\n".join(lines) + "\n"


def _version() -> str:
    from importlib.metadata import version

    from tpudet.trainkit.source_version import git_commit

    commit = git_commit()
    return f"tpudet {version('tpudet')}" + (f" ({commit})" if commit != "unknown" else "")


def _print_completion(arguments: Sequence[str]) -> int:
    """Prints a script for `source <(tpudet completion bash)`."""
    if list(arguments) not in (["bash"], ["zsh"]):
        return _fail("completion takes `bash` or `zsh`: source <(tpudet completion bash)")
    start = "autoload -U +X bashcompinit && bashcompinit\n" if arguments[0] == "zsh" else ""
    return _print(start + _COMPLETION.replace("VERBS", " ".join(VERBS)))
