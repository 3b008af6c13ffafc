"""Clients of a store: no JVM, no broker."""
