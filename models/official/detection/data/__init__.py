"""Files to batches: TFRecord schema, augmentation, canvas, input pipeline."""
