"""Pure decisions and state machines: no clock, no randomness, no I/O; time is an argument."""
