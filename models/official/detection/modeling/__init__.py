"""Necks, heads, losses and detectors as Keras layers and keras.ops."""
