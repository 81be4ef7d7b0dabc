"""Backbones: images to a dictionary of feature maps by level."""
