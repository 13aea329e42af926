"""The cluster image, the controller's decisions and the metadata records."""
