"""Looking at what a detector finds: which images, what is wrong there, pictures and a page."""
