"""Roll logs into segments: `spark-submit jobs/roll.py --help`."""

import sys

from rmq_spark.jobs.maintenance import roll

if __name__ == "__main__":
    sys.exit(roll())
