"""The sample cache: its pixels are those of a run, and a stale or damaged one is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tpudet.classification.data.config import AffineConfig, DataConfig, MixupConfig
from tpudet.classification.data.pipeline import train_dataset
from tpudet.classification.data.sample_cache import find_cache
from tpudet.classification.preparation import write_cache as write_cache_module
from tpudet.classification.preparation.write_cache import CachePlan, write_cache
from tpudet.cli import main
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.images.augmentation_config import ColorConfig
from tpudet.trainkit.record_splits import Split, find_split
from tpudet.trainkit.shuffled_records import ShuffledRecords

SEED = 5
PLAIN = DataConfig(image_size=(24, 32), random_crop=None)
AUGMENTED = DataConfig(image_size=(24, 32), augmentations=(AffineConfig(), ColorConfig()))


@pytest.fixture(scope="module")
def split(colors_part: Path) -> Split:
    names = ["blue", "green", "red"]
    return find_split(str(colors_part), "train", names, per_class="images_per_class")


def plan(data: DataConfig, split: Split, output: Path, variants: int) -> CachePlan:
    return CachePlan(data, str(output), split.shards, split.records_per_shard, 3, variants, SEED)


def images(data: DataConfig, split: Split, count: int) -> np.ndarray:
    """The first images of a run, in an order that does not depend on how they were drawn."""
    dataset = train_dataset(
        data,
        ShuffledRecords(split.shards, split.records_per_shard, seed=SEED),
        num_classes=3,
        batch_size=count,
    )
    (batch,) = dataset.take(1)
    rows = np.concatenate([np.reshape(batch.images, [count, -1]), batch.targets], axis=1)
    return rows[np.lexsort(rows.T)]


@pytest.mark.parametrize(
    ("data", "variants"), [(PLAIN, 0), (AUGMENTED, 2), (replace(AUGMENTED, random_crop=None), 1)]
)
def test_the_cache_holds_the_samples_of_the_first_epochs(
    data: DataConfig, variants: int, split: Split, tmp_path: Path
) -> None:
    """Without variants: all but the flip, which is drawn for each epoch and record."""
    still = data if variants else replace(data, horizontal_flip=False)
    write_cache(plan(data, split, tmp_path, variants), overwrite=False)
    count = 18 * max(1, variants)
    expected = images(still, split, count)
    np.testing.assert_array_equal(
        images(replace(still, cache=str(tmp_path)), split, count), expected
    )
    if not variants:
        flipped = images(replace(data, cache=str(tmp_path)), split, count)
        assert (flipped != expected).any(axis=1).sum() >= 1


def test_the_size_is_estimated_within_a_hundredth(split: Split, tmp_path: Path) -> None:
    wanted = plan(replace(AUGMENTED, image_size=(64, 64)), split, tmp_path, 2)
    write_cache(wanted, overwrite=False)
    written = sum(path.stat().st_size for path in tmp_path.glob("samples-*.tfrecord"))
    assert len(list(tmp_path.glob("samples-*.tfrecord"))) == 4  # two shards, two variants
    assert wanted.num_bytes == pytest.approx(written, rel=0.01)


def test_what_mixes_images_stays_random(split: Split, tmp_path: Path) -> None:
    data = replace(
        AUGMENTED, augmentations=(ColorConfig(), MixupConfig(probability=1.0, alpha=1.0))
    )
    write_cache(plan(data, split, tmp_path, 1), overwrite=False)
    targets = images(replace(data, cache=str(tmp_path)), split, 16)[:, -3:]
    np.testing.assert_allclose(targets.sum(axis=1), 1, rtol=1e-5)
    other = replace(data, augmentations=(ColorConfig(), MixupConfig(probability=0.1)))
    find_cache(replace(other, cache=str(tmp_path)), split.shards, split.records_per_shard)


def test_other_settings_make_a_cache_stale(split: Split, tmp_path: Path) -> None:
    write_cache(plan(AUGMENTED, split, tmp_path, 1), overwrite=False)
    changes = {
        r"data\.image_size was \[24, 32\] and is \[32, 32\]": {"image_size": (32, 32)},
        "data.horizontal_flip was true and is false": {"horizontal_flip": False},
        "data.augmentations was": {"augmentations": (ColorConfig(hue=0.1), AffineConfig())},
    }
    other = AUGMENTED
    for message, change in changes.items():
        other = replace(AUGMENTED, **change, cache=str(tmp_path))
        with pytest.raises(UserError, match=f"is stale: {message}"):
            find_cache(other, split.shards, split.records_per_shard)
    with pytest.raises(UserError, match="--overwrite replaces the cache"):
        write_cache(plan(other, split, tmp_path, 1), overwrite=False)
    write_cache(plan(other, split, tmp_path, 1), overwrite=True)
    find_cache(other, split.shards, split.records_per_shard)


def test_other_records_of_the_same_size_make_a_cache_stale(
    colors_part: Path, tmp_path: Path
) -> None:
    """A label that is put right changes no size of a file, but the manifest."""
    part = tmp_path / "colors"
    shutil.copytree(colors_part, part)
    names = ["blue", "green", "red"]
    split = find_split(str(part), "train", names, per_class="images_per_class")
    data = replace(AUGMENTED, directory=str(part), cache=str(tmp_path / "cache"))
    write_cache(plan(data, split, tmp_path / "cache", 1), overwrite=False)
    images(data, split, 1)
    path = part / "train_colors.manifest.json"
    manifest = json.loads(path.read_text())
    manifest["shards"][0]["inputs"] = "of other labels"
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="is stale: the manifests of the records have changed"):
        images(data, split, 1)


def test_records_of_others_that_were_written_again_make_a_cache_stale(
    colors_part: Path, tmp_path: Path
) -> None:
    """Without a manifest the time of a file is all that tells a label that was put right."""
    part = tmp_path / "colors"
    shutil.copytree(colors_part, part)
    (part / "train_colors.manifest.json").unlink()
    names = ["blue", "green", "red"]
    split = find_split(str(part), "train", names, per_class="images_per_class")
    data = replace(AUGMENTED, directory=str(part), cache=str(tmp_path / "cache"))
    write_cache(plan(data, split, tmp_path / "cache", 2), overwrite=False)
    images(data, split, 1)
    shard = Path(split.shards[0])
    content = shard.read_bytes()
    shard.write_bytes(content)
    message = "is stale: the times of the records have changed; .* --variants 2 --overwrite"
    with pytest.raises(UserError, match=message):
        images(data, split, 1)


def test_an_interrupted_cache_is_refused_and_finished(split: Split, tmp_path: Path) -> None:
    wanted, data = plan(AUGMENTED, split, tmp_path, 1), replace(AUGMENTED, cache=str(tmp_path))
    with pytest.raises(UserError, match="names no finished cache"):
        images(data, split, 1)
    write_cache(wanted, overwrite=False)
    expected = images(data, split, 18)
    kept, lost = sorted(tmp_path.glob("samples-*.tfrecord"))
    (tmp_path / "cache.json").rename(tmp_path / "cache.plan.json")
    lost.unlink()
    written = kept.stat().st_mtime_ns
    write_cache(wanted, overwrite=False)
    assert kept.stat().st_mtime_ns == written
    np.testing.assert_array_equal(images(data, split, 18), expected)
    kept.write_bytes(kept.read_bytes()[:-9])
    with pytest.raises(UserError, match="is damaged: samples-00000-of-00002.tfrecord has"):
        images(data, split, 1)
    write_cache(wanted, overwrite=False)  # writes the damaged file again
    np.testing.assert_array_equal(images(data, split, 18), expected)
    (tmp_path / "cache.json").write_text("{")
    with pytest.raises(UserError, match="was cut short"):
        images(data, split, 1)


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_full_disk_costs_no_file_that_was_written(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
    wanted = plan(AUGMENTED, split, tmp_path, 1)
    write_cache(wanted, overwrite=False)
    if not is_finished:
        (tmp_path / "cache.json").rename(tmp_path / "cache.plan.json")
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        with pytest.raises(UserError, match="and 0 MiB are free"):
            write_cache(wanted, overwrite=False)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == kept
    write_cache(wanted, overwrite=False)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("samples-*")}
    assert written.items() <= kept.items()
    assert not (tmp_path / "cache.plan.json").exists()


def test_a_cache_whose_claim_was_lost_is_not_finished(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = write_cache_module.write_shard, []

    def lose_the_claim_at_last(path: str, records) -> int:
        written.append(path)
        if len(written) == 2:
            (tmp_path / "cache.claim.json").unlink()
        return real(path, records)

    monkeypatch.setattr(write_cache_module, "write_shard", lose_the_claim_at_last)
    with pytest.raises(UserError, match="is no longer claimed"):
        write_cache(plan(AUGMENTED, split, tmp_path, 1), overwrite=False)
    assert len(written) == 2
    assert not (tmp_path / "cache.json").exists()


def test_a_random_crop_needs_variants(colors_part: Path, tmp_path: Path, capsys) -> None:
    command = ["cache_samples", "effnetlite0_112", "--output", str(tmp_path / "cache")]
    command += [f"--set=data.directory={colors_part}"]
    assert main(command) == 2
    assert "set data.random_crop to null, or cache some --variants" in capsys.readouterr().err
    moved = ["data.random_crop=null", "data.random_affine={rotation: 5.0}"]
    assert main([*command, *(f"--set={text}" for text in moved)]) == 2
    assert "set data.random_affine to null, or cache" in capsys.readouterr().err
    assert main([*command, "--variants", "3", "--dry_run"]) == 0
    assert "54 samples take 1.9 MiB" in capsys.readouterr().out  # 3 x 18 x 112 x 112 x 3 bytes
    assert not (tmp_path / "cache/cache.json").exists()


ENTRY = {"file": "samples-00000-of-00001.tfrecord", "records": 1, "bytes": 1}
WHOLE = {"format": 1, "variants": 1, "seed": 5, "made_from": {}, "shards": [ENTRY]}


@pytest.mark.parametrize(
    "changes",
    [
        {"variants": None},
        {"variants": "1"},
        {"made_from": []},
        {"shards": {}},
        {"shards": [1]},
        {"shards": [{"file": "a", "records": 1}]},
        {"shards": [{**ENTRY, "bytes": "1"}]},
        {"shards": [{**ENTRY, "file": "../elsewhere.tfrecord"}]},
        {"shards": [{**ENTRY, "file": "/elsewhere.tfrecord"}]},
        {"shards": []},
        {"shards": [ENTRY, ENTRY]},
        *({"shards": [{**ENTRY, "file": name}]} for name in ("", ".", "..", "a\0")),
        *({"shards": [{**ENTRY, "records": number}]} for number in (0, -1, True, 1 << 63)),
        *({"variants": number} for number in (-1, True, 10**400)),
    ],
)
def test_a_manifest_of_others_is_refused_in_words(changes: dict, tmp_path: Path) -> None:
    (tmp_path / "cache.json").write_text(json.dumps({**WHOLE, **changes}))
    with pytest.raises(UserError, match="is not a manifest of this version"):
        find_cache(replace(PLAIN, cache=str(tmp_path)), [], [])


def test_writing_removes_no_file_elsewhere(split: Split, tmp_path: Path) -> None:
    elsewhere, output = tmp_path / "elsewhere", tmp_path / "cache"
    elsewhere.write_text("of others")
    planned = plan(PLAIN, split, output, 0)
    output.mkdir()
    shards = [{**ENTRY, "file": "../elsewhere"}]
    (output / "cache.json").write_text(json.dumps({**planned.describe(), "shards": shards}))
    write_cache(planned, overwrite=False)
    assert elsewhere.read_text() == "of others"
