"""The files of logs: which log dir holds them, how they are opened, their checkpoints."""
