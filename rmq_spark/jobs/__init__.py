"""What `python -m rmq_spark.jobs.NAME` and `spark-submit jobs/NAME.py` run, for each NAME that jobs/README.md lists.

Arguments, a session, progress and exit codes around library code.
"""
