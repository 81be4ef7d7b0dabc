from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.ops.atss import centerness
from tpudet.detection.ops.boxes import encode_boxes, iou_matrix
from tpudet.trainkit.training.devices import choose_tensorflow_devices


@pytest.fixture
def task(small):
    task = small.build_task()
    small.draw_weights(task)
    return task


def train_step(task, batch) -> tuple[dict[str, Any], Any]:
    variables = [v.value for v in task.model.trainable_variables]
    with tf.GradientTape() as tape:
        losses = task.losses(batch)
    return losses, tape.gradient(losses["loss"], variables)


def test_the_backbone_sees_normalised_pixels(task, monkeypatch):
    seen, backbone = [], task.model.backbone

    def remember(pixels, **settings):
        seen.append(np.asarray(pixels))
        return backbone(pixels, **settings)

    monkeypatch.setattr(task.model, "backbone", remember)
    images = np.broadcast_to(np.array([0, 255, 51], np.uint8), (1, 64, 64, 3))
    task.model(images)
    expected = [-0.485 / 0.229, (1 - 0.456) / 0.224, (0.2 - 0.406) / 0.225]
    np.testing.assert_allclose(seen[0][0, 0, 0], expected, rtol=1e-5)


def test_paths_are_unique_and_begin_with_the_part(task):
    paths = [variable.path for variable in task.model.variables]
    assert len(set(paths)) == len(paths)
    assert {path.split("/")[0] for path in paths} == {"backbone", "neck", "head"}


def test_loss_is_the_sum_and_without_instances_only_classes_count(small, task):
    batch = small.make_batch()
    losses = task.losses(batch)
    assert set(losses) == {"loss", "loss_class", "loss_box"}
    np.testing.assert_allclose(losses["loss"], losses["loss_class"] + losses["loss_box"], rtol=1e-6)
    assert float(losses["loss_box"]) > 0
    empty = batch._replace(classes=np.zeros_like(batch.classes))
    losses, gradients = train_step(task, empty)
    assert float(losses["loss_box"]) == 0
    assert np.isfinite(float(losses["loss"]))
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)


def test_centerness_weighs_boxes_and_is_trained_on_their_anchors(small):
    """Boxes count by their centerness, and its sum, plus 1, is what divides their loss."""
    task = small.build_task(centerness=True)
    small.draw_weights(task)
    losses, gradients = train_step(task, small.make_batch())
    assert set(losses) == {"loss", "loss_class", "loss_box", "loss_centerness"}
    parts = sum(float(value) for name, value in losses.items() if name != "loss")
    np.testing.assert_allclose(losses["loss"], parts, rtol=1e-6)
    for variable, gradient in zip(task.model.trainable_variables, gradients, strict=True):
        if "centerness" in variable.path:
            assert np.any(gradient), variable.path

    def box_loss(box_deltas, boxes, anchors, weights, normalizer):
        return tf.reduce_sum(weights) / normalizer

    batch, answers = small.make_batch(batch=8), small.make_answers(batch=8)
    matches = small.DEFAULTS["match"](
        small.make_anchors(), batch.boxes, batch.classes, batch.is_crowd
    )
    total = np.sum(np.array(centerness(small.make_anchors(), matches.boxes))[matches.classes > 0])
    assert 1 < total < np.sum(matches.classes > 0)
    found = small.losses_of(answers, batch, box_loss=box_loss, box_loss_weight=1.0)
    np.testing.assert_allclose(found["loss_box"], total / (total + 1), rtol=1e-5)


def test_class_loss_is_told_how_well_the_predicted_boxes_lie(small):
    """A network that says every object's own box has quality 1 at each of its anchors."""
    batch, anchors, seen = small.make_batch(batch=8), small.make_anchors(), {}

    def class_loss(logits, targets, quality, normalizer):
        seen.update(targets=targets, quality=np.array(quality), normalizer=float(normalizer))
        return tf.reduce_sum(logits) * 0

    matches = small.DEFAULTS["match"](anchors, batch.boxes, batch.classes, batch.is_crowd)
    answers = small.make_answers(batch=8)._replace(box_deltas=encode_boxes(matches.boxes, anchors))
    losses = small.losses_of(answers, batch, class_loss=class_loss)
    positive = np.array(matches.classes) > 0
    assert 5 < positive.sum() < 100
    assert seen["normalizer"] == positive.sum() + 1
    np.testing.assert_array_equal(seen["targets"], matches.classes)
    np.testing.assert_allclose(seen["quality"][positive], 1.0, atol=1e-4)
    np.testing.assert_allclose(losses["loss_box"], 0, atol=1e-5)
    # Where it says the anchors themselves, theirs.
    answers = answers._replace(box_deltas=np.zeros_like(answers.box_deltas))
    small.losses_of(answers, batch, class_loss=class_loss)
    expected = np.diagonal(iou_matrix(anchors, matches.boxes), axis1=1, axis2=2)
    np.testing.assert_allclose(seen["quality"][positive], expected[positive], atol=1e-5)


def test_losses_of_a_batch_are_the_mean_of_its_images_where_each_has_its_own_normaliser(small):
    """The last image of a batch has no instance: its normaliser is 1."""
    batch, answers = small.make_batch(batch=3), small.make_answers(batch=3)
    settings = {"loss_normalization": "image"}
    whole = small.losses_of(answers, batch, **settings)
    for name, value in whole.items():
        parts = []
        for row in slice(0, 1), slice(1, 2), slice(2, 3):
            image = batch._replace(
                **{
                    field: getattr(batch, field)[row]
                    for field in ("images", "boxes", "classes", "is_crowd")
                }
            )
            one = small.RawPredictions(*(part[row] for part in answers))
            parts.append(small.losses_of(one, image, **settings)[name])
        np.testing.assert_allclose(value, np.mean(parts), rtol=1e-5)
    # By the batch, the sums are divided by all its positive anchors and 1 more.
    alone = small.losses_of(answers, batch)
    assert abs(float(alone["loss_box"]) - float(whole["loss_box"])) > 1e-3


def test_what_lies_beyond_the_image_has_the_mean_colour(small):
    """An image of 32 by 100 pixels on the canvas: whatever is beyond, the answers are the same."""
    batch = small.make_batch()
    sizes = np.tile(np.array([[32, 100]], np.float32), (2, 1))
    batch = batch._replace(original_sizes=sizes)
    other = batch._replace(images=batch.images.copy())
    other.images[:, 32:] = 255
    other.images[:, :, 100:] = 7
    for padding, same in (("mean", True), ("black", False)):
        task = small.build_task(padding=padding)
        small.draw_weights(task)
        one, two = (np.asarray(task.predict(each).scores) for each in (batch, other))
        assert np.array_equal(one, two) == same


@pytest.mark.parametrize("settings", ["default", "varied"])
def test_degenerate_instances_change_nothing(small, settings):
    """Whatever matches and whatever the losses are."""
    task = small.build_task(**small.LOSSES["atss_ciou"] if settings == "varied" else {})
    small.draw_weights(task)
    batch = small.make_batch()
    boxes, classes = batch.boxes.copy(), batch.classes.copy()
    classes[0, 2] = 0  # the one without area
    expected, _ = train_step(task, batch._replace(classes=classes))
    classes[0, 2] = 3
    for bad in ([5, 5, 5, 5], [9, 9, 1, 1], [np.nan] * 4, [0, 0, np.inf, 1]):
        boxes[0, 2] = bad
        losses, gradients = train_step(task, batch._replace(boxes=boxes, classes=classes))
        np.testing.assert_allclose(losses["loss"], expected["loss"], rtol=1e-5)
        assert all(np.all(np.isfinite(gradient)) for gradient in gradients)


def test_eager_equals_traced(small, task):
    batch = small.make_batch()
    predicted, traced = task.predict(batch), tf.function(task.predict, autograph=False)(batch)
    for one, other in zip(predicted[:4], traced[:4], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)
    losses, gradients = train_step(task, batch)
    traced_losses, traced_gradients = tf.function(
        lambda batch: train_step(task, batch), autograph=False
    )(batch)
    for name, value in losses.items():
        np.testing.assert_allclose(traced_losses[name], value, rtol=1e-5)
    for one, other in zip(gradients, traced_gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_batched_equals_single(small, task):
    batch = small.make_batch(batch=3)
    together = task.predict(batch)
    for image in range(3):
        alone = task.predict(type(batch)(*(value[image : image + 1] for value in batch[:8])))
        for one, other in zip(alone[:4], together[:4], strict=True):
            np.testing.assert_allclose(one[0], other[image], rtol=1e-4, atol=1e-3)


def test_detections_are_on_the_canvas_and_sorted(small, task):
    found = task.predict(small.make_batch())
    assert found.boxes.shape == (2, 40, 4)
    assert np.all(np.array(found.num_detections) > 0)
    boxes, scores = np.array(found.boxes), np.array(found.scores)
    assert boxes.min() >= 0
    assert np.all(boxes[..., [2, 3]] <= small.CANVAS)
    assert np.all(np.diff(scores, axis=1) <= 0)


def test_half_precision_answers_in_float32(small):
    keras.config.set_dtype_policy("mixed_bfloat16")
    task = small.build_task()
    answers = task.model(small.make_batch().images)
    assert answers.class_logits.dtype == answers.box_deltas.dtype == tf.float32
    losses, gradients = train_step(task, small.make_batch())
    assert losses["loss"].dtype == tf.float32
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)


def test_anchors_of_another_canvas(small, task):
    batch = small.make_batch()
    with pytest.raises(ValueError, match="predicts for 189 anchors, but the task has 378"):
        task.predict(batch._replace(images=batch.images[:, :, :64]))


def test_two_replicas_equal_one(small, task):
    batch = small.make_batch(batch=4)
    losses, gradients = train_step(task, batch)
    moved = {v.path: v.numpy() for v in task.model.non_trainable_variables}

    devices = choose_tensorflow_devices("cpu", 2)
    strategy = devices.strategy
    with strategy.scope():
        split = small.build_task(synchronized=True, sum_over_replicas=devices.sum_over_replicas)
        small.draw_weights(split)

    @tf.function(autograph=False)
    def run():
        def replica():
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            half = [tf.convert_to_tensor(value)[index * 2 : index * 2 + 2] for value in batch[:8]]
            return train_step(split, type(batch)(*half))

        losses, gradients = strategy.run(replica)
        return tf.nest.map_structure(
            lambda value: sum(strategy.experimental_local_results(value)), (losses, gradients)
        )

    shared_losses, shared_gradients = run()
    for name, value in losses.items():
        np.testing.assert_allclose(shared_losses[name], value, rtol=1e-4)
    for one, other, v in zip(
        shared_gradients, gradients, split.model.trainable_variables, strict=True
    ):
        scale = np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * scale + 1e-5, err_msg=v.path)
    for variable in split.model.non_trainable_variables:
        for value in strategy.experimental_local_results(variable.value):
            np.testing.assert_allclose(value, moved[variable.path], rtol=1e-4, atol=1e-5)
