"""Queries: messages by key, id, queue and time. Tables make them fast, the log makes them complete."""
