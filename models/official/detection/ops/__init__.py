"""Pure tensor functions on boxes, anchors and scores, in keras.ops."""
