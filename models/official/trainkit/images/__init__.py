"""Images: decoding, the canvas, pixel operations, mixing."""
