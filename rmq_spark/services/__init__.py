"""Loops that carry out rules: timers, check-backs, retention. Each is safe in any number of copies."""
