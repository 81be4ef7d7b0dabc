"""Image classification on the same trainer; nothing is built here yet."""
