"""RocketMQ 5's gRPC protocol on a store: real RocketMQ clients, in any language, send to and receive from it.

This layer only translates. It holds no state that counts: any number of proxies may serve one store at once.
"""

from rmq_spark.proxy.server import Proxy, serve
from rmq_spark.proxy.settings import ProxySettings

__all__ = ["Proxy", "ProxySettings", "serve"]
