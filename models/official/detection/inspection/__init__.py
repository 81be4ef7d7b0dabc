"""Draws detections beside their ground truth, and finds the images with the worst ones."""
