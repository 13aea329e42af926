"""Reports over topics and lakes, with charts."""
