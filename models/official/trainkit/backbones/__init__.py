"""Backbones: maps images to {level: features}."""
