"""Bytes to messages and back, without a socket: pure, so that one broker, its client and the simulator share it."""
