"""The broker's part in its cluster: the image, its registration, commits, and the controller's duties."""
