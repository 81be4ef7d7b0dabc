"""Folders of images to splits, and splits to TFRecords."""
