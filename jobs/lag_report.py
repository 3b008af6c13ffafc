"""Show how far consumer groups are behind: `spark-submit jobs/lag_report.py --help`."""

import sys

from rmq_spark.jobs.lag_report import lag_report

if __name__ == "__main__":
    sys.exit(lag_report())
