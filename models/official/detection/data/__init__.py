"""The input pipeline: records, augmentations, batches."""
