"""The `rmq` command: parse arguments, call the client and the log, show what came of it. No logic of its own."""
