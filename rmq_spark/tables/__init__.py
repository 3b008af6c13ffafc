"""Tables derived from the log: ConsumeQueue, index and consumer offsets, in Delta format, for any engine to read."""
