"""The input pipeline: records, crops, augmentations, batches."""
