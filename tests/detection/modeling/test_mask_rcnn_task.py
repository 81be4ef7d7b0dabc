import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.modeling import mask_rcnn_task
from tpudet.detection.modeling.mask_rcnn_task import CASCADE
from tpudet.detection.ops.boxes import iou_matrix
from tpudet.detection.ops.numpy_masks import paste_mask
from tpudet.detection.types import Batch
from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.resnet import ResNet
from tpudet.trainkit.training.devices import choose_tensorflow_devices

BOXES = {"loss_rpn_class", "loss_rpn_box", "loss_class", "loss_box", "loss"}


@pytest.fixture(params=["mask_rcnn", "cascade"])
def task(small_mask, request):
    task = small_mask.build_task(**small_mask.settings_by_name()[request.param])
    small_mask.draw_weights(task)
    return task


@pytest.fixture
def mask_task(small_mask):
    task = small_mask.build_task()
    small_mask.draw_weights(task)
    return task


# Half of the time of a trace goes to AutoGraph, which finds nothing to convert.
traced_function = functools.partial(tf.function, autograph=False)


def train_step(task, batch) -> tuple[dict[str, Any], Any]:
    variables = [v.value for v in task.model.trainable_variables]
    with tf.GradientTape() as tape:
        losses = task.losses(batch)
    return losses, tape.gradient(losses["loss"], variables)


def test_loss_is_the_sum_and_reaches_every_variable(small_mask, task):
    losses, gradients = train_step(task, small_mask.make_batch())
    assert set(losses) == BOXES | {"loss_mask"}
    parts = [float(value) for name, value in losses.items() if name != "loss"]
    np.testing.assert_allclose(losses["loss"], sum(parts), rtol=1e-6)
    assert min(parts) > 0
    assert all(np.all(np.isfinite(tf.convert_to_tensor(gradient))) for gradient in gradients)


def test_without_instances_only_background_is_learned(small_mask, task):
    batch = small_mask.make_batch()
    empty = batch._replace(
        classes=np.zeros_like(batch.classes),
        boxes=np.zeros_like(batch.boxes),
        masks=np.zeros_like(batch.masks),
    )
    losses, gradients = train_step(task, empty)
    for name, value in losses.items():
        if name.endswith(("box", "mask")):
            assert float(value) == 0
        else:
            assert float(value) > 0
    assert all(np.all(np.isfinite(tf.convert_to_tensor(gradient))) for gradient in gradients)


def test_degenerate_instances_change_nothing(small_mask, mask_task):
    batch = small_mask.make_batch()
    boxes, classes = batch.boxes.copy(), batch.classes.copy()
    classes[0, 2] = 0  # the one without area
    expected = mask_task.losses(batch._replace(classes=classes))
    classes[0, 2] = 3
    for bad in ([5, 5, 5, 5], [9, 9, 1, 1], [np.nan] * 4, [0, 0, np.inf, 1]):
        boxes[0, 2] = bad
        mask_task.model.draws.assign(0)
        losses = mask_task.losses(batch._replace(boxes=boxes, classes=classes))
        np.testing.assert_allclose(losses["loss"], expected["loss"], rtol=1e-5)


def test_instances_without_a_mask_are_learned_as_boxes_only(small_mask, mask_task):
    batch = small_mask.make_batch()
    whole = mask_task.losses(batch)
    mask_task.model.draws.assign(0)
    losses = mask_task.losses(batch._replace(masks=np.zeros_like(batch.masks)))
    assert float(losses["loss_mask"]) == 0
    assert float(losses["loss_box"]) == float(whole["loss_box"])


def test_masks_are_needed_to_learn_masks(small_mask, mask_task):
    with pytest.raises(ValueError, match="predicts masks, but the batch has none"):
        mask_task.losses(small_mask.make_batch()._replace(masks=None))


def test_every_step_draws_anew_and_a_restored_one_draws_again(small_mask, mask_task):
    batch = small_mask.make_batch()
    losses = [float(mask_task.losses(batch)["loss_rpn_class"]) for _ in range(2)]
    assert losses[0] != losses[1]
    assert int(mask_task.model.draws) == 2
    mask_task.model.draws.assign(0)
    assert float(mask_task.losses(batch)["loss_rpn_class"]) == losses[0]


@pytest.mark.slow
def test_eager_equals_traced(small_mask, task):
    batch = small_mask.make_batch()
    predicted, traced = task.predict(batch), traced_function(task.predict)(batch)
    for one, other in zip(predicted, traced, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)
    losses, gradients = train_step(task, batch)
    task.model.draws.assign(0)
    traced_losses, traced_gradients = traced_function(lambda batch: train_step(task, batch))(batch)
    for name, value in losses.items():
        np.testing.assert_allclose(traced_losses[name], value, rtol=1e-4)
    for one, other in zip(gradients, traced_gradients, strict=True):
        one, other = tf.convert_to_tensor(one), tf.convert_to_tensor(other)
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_batched_equals_single(small_mask, task):
    batch = small_mask.make_batch(batch=3)
    together = task.predict(batch)
    for image in range(3):
        alone = task.predict(Batch(*(value[image : image + 1] for value in batch)))
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_allclose(one[0], other[image], rtol=1e-4, atol=1e-3)


def test_detections_are_on_the_canvas_and_sorted(small_mask, task):
    found = task.predict(small_mask.make_batch())
    assert found.boxes.shape == (2, 20, 4)
    assert np.all(np.array(found.num_detections) > 0)
    boxes, scores, classes = (np.array(value) for value in found[:3])
    assert boxes.min() >= 0
    assert np.all(boxes[..., [2, 3]] <= small_mask.CANVAS)
    assert np.all(np.diff(scores, axis=1) <= 0)
    valid = np.arange(20) < np.array(found.num_detections)[:, None]
    np.testing.assert_array_equal(classes > 0, valid)
    assert classes.max() <= small_mask.NUM_CLASSES
    masks = np.array(found.masks)
    assert masks.shape == (2, 20, 28, 28)
    assert 0 < masks[valid].min() < masks[valid].max() < 1
    assert not masks[~valid].any()


def test_without_a_mask_head_it_is_faster_rcnn(small_mask):
    """The same losses and detections from the same weights, but for the masks."""
    batch = small_mask.make_batch()
    tasks = [small_mask.build_task(include_mask=include_mask) for include_mask in (True, False)]
    for task in tasks:
        small_mask.draw_weights(task)
    weights = {v.path: v.numpy() for v in tasks[0].model.variables}
    for variable in tasks[1].model.variables:
        variable.assign(weights[variable.path])
    with_masks, boxes_only = (task.predict(batch) for task in tasks)
    assert boxes_only.masks is None
    for one, other in zip(boxes_only[:4], with_masks[:4], strict=True):
        np.testing.assert_array_equal(one, other)
    losses = tasks[1].losses(batch._replace(masks=None))
    assert set(losses) == BOXES
    expected = tasks[0].losses(batch)
    for name in BOXES - {"loss"}:
        np.testing.assert_array_equal(losses[name], expected[name])


def test_masks_of_detections_are_those_of_their_class(small_mask, mask_task):
    """Changing the weights of one class's mask changes the masks of that class only."""
    batch = small_mask.make_batch()
    before = mask_task.predict(batch)
    number = np.max(before.classes)
    kernel = mask_task.model.mask_head.mask_predict.kernel
    changed = kernel.numpy()
    changed[..., number - 1] = -changed[..., number - 1] + 0.5
    kernel.assign(changed)
    after = mask_task.predict(batch)
    np.testing.assert_array_equal(before.classes, after.classes)
    moved = np.any(np.array(before.masks) != np.array(after.masks), axis=(2, 3))
    np.testing.assert_array_equal(moved, np.array(before.classes) == number)


def test_stages_and_box_heads_must_be_as_many(small_mask, mask_task):
    settings = {name: getattr(mask_task, name) for name in vars(mask_task) if name != "stages"}
    with pytest.raises(ValueError, match="3 stages for 1 box head"):
        type(mask_task)(**settings, stages=CASCADE)


def test_anchors_of_another_canvas(small_mask, mask_task):
    batch = small_mask.make_batch()
    with pytest.raises(ValueError, match="predicts for 1023 anchors, but the task has 2046"):
        mask_task.predict(batch._replace(images=batch.images[:, :, :64]))


def test_half_precision_predicts_in_float32(small_mask):
    keras.config.set_dtype_policy("mixed_bfloat16")
    task = small_mask.build_task()
    losses, gradients = train_step(task, small_mask.make_batch())
    assert losses["loss"].dtype == tf.float32
    assert all(np.all(np.isfinite(tf.convert_to_tensor(gradient))) for gradient in gradients)
    found = task.predict(small_mask.make_batch())
    assert found.boxes.dtype == found.masks.dtype == tf.float32


@pytest.mark.slow
def test_two_replicas_equal_one(small_mask):
    """Also in the anchors and regions drawn, which depend on the image alone."""
    batch = small_mask.make_batch(batch=4)
    task = small_mask.build_task(norms=True)
    small_mask.draw_weights(task)
    losses, gradients = train_step(task, batch)
    devices = choose_tensorflow_devices("cpu", 2)
    strategy = devices.strategy
    with strategy.scope():
        split = small_mask.build_task(
            norms=True, synchronized=True, sum_over_replicas=devices.sum_over_replicas
        )
        small_mask.draw_weights(split)

    @traced_function
    def run():
        def replica():
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            half = [tf.convert_to_tensor(value)[index * 2 : index * 2 + 2] for value in batch]
            losses, gradients = train_step(split, Batch(*half))
            return losses, [tf.convert_to_tensor(gradient) for gradient in gradients]

        return tf.nest.map_structure(
            lambda value: sum(strategy.experimental_local_results(value)), strategy.run(replica)
        )

    shared_losses, shared_gradients = run()
    for name, value in losses.items():
        np.testing.assert_allclose(shared_losses[name], value, rtol=1e-3, err_msg=name)
    for one, other, v in zip(
        shared_gradients, gradients, split.model.trainable_variables, strict=True
    ):
        other = tf.convert_to_tensor(other)
        scale = np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=5e-4 * scale + 1e-5, err_msg=v.path)
    for value in strategy.experimental_local_results(split.model.draws.value):
        assert int(value) == 1


def make_two_objects(side=128) -> Any:
    """A disc and a square, bright and dark on grey, in one image."""
    rows, columns = np.meshgrid(np.arange(side) + 0.5, np.arange(side) + 0.5, indexing="ij")
    disc = np.hypot(rows - 40, columns - 44) < 26
    square = (abs(rows - 88) < 22) & (abs(columns - 86) < 26)
    image = np.full((side, side, 3), 110, np.uint8)
    image[disc], image[square] = (230, 200, 40), (20, 40, 150)
    masks = np.stack([disc, square]).astype(np.uint8)
    boxes = [[14, 18, 66, 70], [66, 60, 110, 112]]
    return Batch(
        images=image[None],
        boxes=np.array([boxes], np.float32),
        classes=np.array([[1, 2]], np.int32),
        is_crowd=np.zeros((1, 2), bool),
        records=np.arange(1),
        original_sizes=np.full((1, 2), side, np.float32),
        scales=np.ones((1, 2), np.float32),
        offsets=np.zeros((1, 2), np.float32),
        masks=np.packbits(masks[None], axis=-1),
    )


@pytest.mark.slow
def test_one_image_is_learned_by_heart(small_mask):
    """Boxes and masks of a disc and a square, from random weights, on P2 to P6 of a ResNet-18."""
    keras.utils.set_random_seed(0)
    batch, num_steps = make_two_objects(), 110
    task = small_mask.build_task(
        canvas=(128, 128),
        backbone=ResNet(
            depth=18, make_norm=functools.partial(BatchNorm, momentum=0.8, epsilon=1e-3)
        ),
        momentum=0.8,
        num_filters=32,
        num_units=64,
        score_threshold=0.5,
    )
    schedule: Any = keras.optimizers.schedules.CosineDecay(2e-3, num_steps)
    optimizer = keras.optimizers.Adam(schedule)
    variables = task.model.trainable_variables
    optimizer.build(variables)

    @traced_function
    def step():
        losses, gradients = train_step(task, batch)
        optimizer.apply([tf.convert_to_tensor(gradient) for gradient in gradients], variables)
        return losses

    for _ in range(num_steps):
        step()
    found = task.predict(batch)
    assert int(found.num_detections[0]) == 2
    boxes, _, classes, _, masks = (np.array(value)[0] for value in found)
    true_masks = np.unpackbits(batch.masks[0], axis=-1) > 0
    assert sorted(classes[:2]) == [1, 2]
    for box, mask, number in zip(boxes[:2], masks[:2], classes[:2], strict=True):
        true_box, true_mask = batch.boxes[:, number - 1], true_masks[number - 1]
        assert float(iou_matrix(box[None], true_box)[0, 0]) > 0.9
        pasted = paste_mask(mask, box, height=128, width=128)
        assert np.sum(pasted & true_mask) / np.sum(pasted | true_mask) >= 0.9


def test_masks_learned_in_parts_are_those_learned_at_once(small_mask, mask_task, monkeypatch):
    batch = small_mask.make_batch()
    results = []
    for parts in (1, 2, 5):
        monkeypatch.setattr(mask_rcnn_task, "_MASK_PARTS", parts)
        mask_task.model.draws.assign(0)
        losses, gradients = train_step(mask_task, batch)
        results.append([losses["loss_mask"], *map(tf.convert_to_tensor, gradients)])
    assert float(results[0][0]) > 0
    for result in results[1:]:
        for one, other in zip(results[0], result, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
