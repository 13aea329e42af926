"""The joints: runs the decisions of core on the edges."""
