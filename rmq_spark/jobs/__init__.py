"""What `spark-submit jobs/….py` runs: arguments, a session, progress and exit codes around library code."""
