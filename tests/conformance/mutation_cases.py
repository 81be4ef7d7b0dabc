"""The commands that get damaged files, and which files of `sound_inputs.py` those are."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from mutations import BINARY, JSON, RECORDS, TEXT, Mutation


class Case(NamedTuple):
    """A command with a damaged file; in its words {in} is the folder and {out} the output."""

    family: str
    file: str  # pattern of the files to damage
    mutations: Sequence[Mutation]
    command: str
    weight: float = 1.0  # how often it is drawn; commands of seconds have less

    @property
    def verb(self) -> str:
        """The command."""
        return self.command.split()[0]


_IMAGE_TABLE = "--format open_images --annotations {in}/images/val_boxes.csv --workers 1"
_IMAGE_TABLE += " --classes {in}/images/classes.csv --images {in}/images/val"
_RECORDS = _IMAGE_TABLE + " --split val --output {out}/part --num_shards 1"
_MODEL_INPUT = "{in}/saved_model --images {in}/images/val --workers 1 --batch_size 2"
_TRAIN = "train --config quickstart --dry_run --model_dir {out}/model --set data.directory={in}/set"


def _image_cases() -> list[Case]:
    return [
        Case("images", "images/val/*", BINARY, f"check_data {_IMAGE_TABLE}"),
        Case("images", "images/val/*", BINARY, f"make_tfrecords {_RECORDS}"),
        Case("images", "images/val/*", BINARY, f"predict {{out}}/p.parquet {_MODEL_INPUT}", 0.5),
        Case(
            "images",
            "images/val/*",
            BINARY,
            "draw_predictions {in}/images/p.parquet --images {in}/images/val --output {out}/drawn",
        ),
        Case(
            "images",
            "folders/*/*/*",
            BINARY,
            "images_to_tfrecords {in}/folders --output {out}/part --workers 1 --num_shards 1",
        ),
    ]


def _annotation_cases() -> list[Case]:
    cases = []
    sources = {
        "coco": ("coco.json", JSON, "--images {in}/val"),
        "voc": ("voc/*.xml", TEXT, "--images {in}/val"),
        "yolo": ("yolo/labels/val/*.txt", TEXT, "--split val"),
        "csv": ("val_boxes.csv", TEXT, "--images {in}/val --classes {in}/classes.csv"),
        "parquet": (
            "boxes.parquet",
            BINARY,
            "--images {in}/val --columns image=ImageID,x1=XMin,y1=YMin,x2=XMax,y2=YMax,"
            "class=LabelName --coordinates fractions",
        ),
    }
    formats = {"csv": "open_images", "parquet": "table"}
    for family, (file, mutations, flags) in sources.items():
        annotations = {"voc": "voc", "yolo": "yolo/data.yaml"}.get(family, file)
        words = f"--format {formats.get(family, family)} --annotations {{in}}/images/{annotations} "
        words += flags.replace("{in}", "{in}/images") + " --workers 1"
        words = words.replace(" --split val", "")
        for command in (
            f"check_data {words}",
            f"make_tfrecords {words} --split val --output {{out}}/part --num_shards 1",
        ):
            cases.append(Case(family, f"images/{file}", mutations, command))
            if family == "yolo":
                cases.append(Case(family, "images/yolo/data.yaml", TEXT, command))
    return cases


def _table_cases() -> list[Case]:
    boxes = {
        "filter_dataset {out}/b.csv {in}/images/val_boxes.csv",
        "kfold_split {out}/t_{}.csv {out}/v_{}.csv {in}/images/val_boxes.csv --num_folds 2",
        "gen_coco_val_json {out}/v.json {in}/images/val_boxes.csv {in}/images/classes.csv "
        "--image_dir {in}/images/val",
        "evaluate_submission {in}/images/a.csv {in}/images/val_boxes.csv --output {out}/e",
        "add_pseudo_labels {out}/b.csv {in}/images/val_boxes.csv {in}/images/a.csv",
    }
    cases = [Case("csv", "images/val_boxes.csv", TEXT, command, 0.5) for command in sorted(boxes)]
    return [
        *cases,
        Case("csv", "images/classes.csv", TEXT, f"check_data {_IMAGE_TABLE}"),
        Case(
            "csv",
            "images/classes.csv",
            TEXT,
            "drop_parents {out}/s.csv {in}/images/a.csv --classes {in}/images/classes.csv",
        ),
        Case(
            "coco",
            "images/hierarchy.json",
            JSON,
            "add_parents {out}/s.csv {in}/images/a.csv --hierarchy {in}/images/hierarchy.json",
        ),
        Case(
            "coco",
            "images/coco.json",
            JSON,
            "convert_predictions {in}/images/p.parquet {out}/r.json --to coco "
            "--ground_truth {in}/images/coco.json",
        ),
    ]


def _set_cases() -> list[Case]:
    cases = []
    for file, mutations, family in (
        ("set/val_*.tfrecord", RECORDS, "tfrecords"),
        ("set/*.manifest.json", JSON, "manifests"),
        ("set/classes.csv", TEXT, "manifests"),
    ):
        for command, weight in (
            ("describe_dataset {in}/set --output {out}/r.html --samples 3", 1.0),
            ("export_annotations {in}/set {out}/r.json --split val", 1.0),
            (
                "show_augmented quickstart --set data.directory={in}/set --num_images 2 "
                "--output {out}/a.png --set data.train_split=val",
                0.3,
            ),
            (_TRAIN, 0.2),
        ):
            cases.append(Case(family, file, mutations, command, weight))
    return cases


def _experiment_cases() -> list[Case]:
    return [
        Case("yaml", "experiment.yaml", TEXT, "show_config --config {in}/experiment.yaml"),
        Case(
            "yaml", "experiment.yaml", TEXT, "plot_schedule {in}/experiment.yaml {out}/s.png", 0.2
        ),
        Case("yaml", "legacy.yaml", TEXT, "import_legacy_config {in}/legacy.yaml"),
        Case("yaml", "model/config.yaml", TEXT, "list_runs {in}/model", 0.5),
        Case("yaml", "model/metrics.jsonl", TEXT, "list_runs {in}/model"),
        Case("checkpoints", "model/checkpoint", TEXT, "list_checkpoint {in}/model"),
        Case("checkpoints", "model/model.ckpt-*", BINARY, "list_checkpoint {in}/model"),
        Case("checkpoints", "weights/*", BINARY, "list_checkpoint {file}", 3.0),
        Case(
            "checkpoints",
            "model/*",
            BINARY,
            "export --model_dir {in}/model --export_root {out}/final",
            0.15,
        ),
        Case("checkpoints", "saved_model/*", BINARY, f"predict {{out}}/p.pkl {_MODEL_INPUT}", 0.2),
    ]


def _prediction_cases() -> list[Case]:
    cases = []
    for family, ending in (("pickles", "pkl"), ("parquet", "parquet")):
        predictions = f"{{in}}/images/p.{ending}"
        for command in (
            f"gen_sub {predictions} --out {{out}}/s.csv --hierarchy none",
            f"convert_predictions {predictions} {{out}}/r.csv --to csv",
            f"join_predicted_parts {{out}}/p.parquet {predictions}",
            f"draw_predictions {predictions} --images {{in}}/images/val --output {{out}}/drawn",
        ):
            cases.append(Case(family, f"images/p.{ending}", BINARY, command))
    return cases


def _submission_cases() -> list[Case]:
    cases = []
    for command in (
        "join_subs {out}/s.csv {in}/images/a.csv {in}/images/b.csv",
        "merge_subs {out}/s.csv {in}/images/a.csv {in}/images/b.csv --method wbf --skip_bad",
        "trim_sub_by_threshold {out}/s.csv {in}/images/a.csv 0.3",
        "trim_sub_by_num_of_predicts {out}/s.csv {in}/images/a.csv 2 --skip_bad",
        "trim_sub_decimal_digits {out}/s.csv {in}/images/a.csv --digits 3",
        "add_parents {out}/s.csv {in}/images/a.csv --hierarchy {in}/images/hierarchy.json",
        "evaluate_submission {in}/images/a.csv {in}/images/val_boxes.csv --output {out}/e",
        "add_pseudo_labels {out}/b.csv {in}/images/val_boxes.csv {in}/images/a.csv",
        "draw_predictions {in}/images/a.csv --images {in}/images/val --output {out}/drawn "
        "--classes {in}/images/classes.csv",
    ):
        cases.append(Case("submissions", "images/a.csv", TEXT, command))
    for command in (
        "merge_subs {out}/s.csv {in}/images/masks_a.csv {in}/images/masks_b.csv",
        "join_subs {out}/s.csv {in}/images/masks_a.csv {in}/images/masks_b.csv",
        "trim_sub_by_threshold {out}/s.csv {in}/images/masks_a.csv 0.3",
    ):
        cases.append(Case("submissions", "images/masks_a.csv", TEXT, command))
    return cases


CASES = [
    *_image_cases(),
    *_annotation_cases(),
    *_table_cases(),
    *_set_cases(),
    *_experiment_cases(),
    *_prediction_cases(),
    *_submission_cases(),
]
FAMILIES = tuple(dict.fromkeys(case.family for case in CASES))


def random_of(seed: int, number: int, what: str) -> Random:
    return Random(f"{seed} {number} {what}")


def draw_case(seed: int, number: int) -> Case:
    """The case of an input; families take turns."""
    family = FAMILIES[number % len(FAMILIES)]
    cases = [case for case in CASES if case.family == family]
    return random_of(seed, number, "case").choices(cases, [case.weight for case in cases])[0]
