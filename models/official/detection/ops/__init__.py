"""Pure functions on boxes, anchors, scores and masks, in keras.ops or NumPy."""
