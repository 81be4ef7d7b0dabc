"""Augmentations of a training image with its boxes and masks."""
