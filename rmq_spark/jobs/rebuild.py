"""Empty the tables and fill them from the logs: `python -m rmq_spark.jobs.rebuild --help`."""

import sys

from rmq_spark.jobs.reput import rebuild

if __name__ == "__main__":
    sys.exit(rebuild())
