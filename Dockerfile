# A proxy for RocketMQ 5 clients. The store is a directory (mount it at /store), HDFS, or S3:
#   docker build -t rmq-proxy .
#   docker run --rm --entrypoint rmq -v /var/lib/rmq:/store rmq-proxy init      # once, for a new store
#   docker run -p 8081:8081 -p 5557:5557 -v /var/lib/rmq:/store rmq-proxy
# The directory must belong to user 10001. S3 takes its credentials from the environment:
#   docker run -p 8081:8081 -e RMQ_STORE=s3://bucket/store rmq-proxy
FROM python:3.12-slim

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY rmq_spark rmq_spark
COPY datasource datasource
RUN pip install --no-cache-dir ".[cli,proxy,fast,s3,hdfs]" && rm -rf /src/*

RUN useradd --system --uid 10001 rmq && mkdir /store && chown rmq /store
USER rmq
WORKDIR /
ENV RMQ_STORE=/store
EXPOSE 8081 5557
STOPSIGNAL SIGTERM
ENTRYPOINT ["rmq", "proxy"]
CMD ["--listen", "0.0.0.0:8081", "--metrics", "5557"]
