"""Tools for tests of rmq-spark and of code built on it: a conformance suite, real servers, pinned jars."""
