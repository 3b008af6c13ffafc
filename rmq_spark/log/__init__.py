"""The storage engine: a chain of immutable Arrow files, and the state that is folded from it."""
