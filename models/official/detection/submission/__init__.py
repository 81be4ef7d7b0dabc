"""Challenge submission files. Imports no TensorFlow."""
