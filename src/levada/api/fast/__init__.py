"""Fast paths: frequent requests, decoded in place. `levada.fast.paths=false` turns all of them off."""
