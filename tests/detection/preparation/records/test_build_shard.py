"""One shard on a machine that does not see what the others see."""

import socket

import pytest

from tpudet.detection.preparation.records.build_shard import build_shard
from tpudet.detection.preparation.records.plan import plan_shards
from tpudet.detection.preparation.sources.coco import read_coco
from tpudet.trainkit.errors import UserError


def test_node_without_the_image_folder_fails_and_counts_nothing_as_missing(
    write_coco, encoded_image, tmp_path
) -> None:
    path, images = write_coco({"a.jpg": encoded_image()}, {"a.jpg": [(3, 0, 0, 5, 5)]})
    plan = plan_shards(
        read_coco(str(path)),
        image_directories=(str(images),),
        output=str(tmp_path / "converted/part"),
        split="val",
        num_shards=1,
        seed=0,
        include_masks=False,
        options={},
    )
    job = next(iter(plan.jobs(write=True)))._replace(image_directories=("/elsewhere/images",))
    with pytest.raises(UserError, match=f"{socket.gethostname()} has no folder /elsewhere"):
        build_shard(job, lambda amount: None)
    assert not (tmp_path / "converted").exists()
