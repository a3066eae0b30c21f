"""L3 on Redis or Valkey, one server or a cluster; pages go between sockets and host memory without a copy of our own."""

if __name__ != "unified_tree.controllers.storage.redis":  # a second name would make every class exist twice
    raise ImportError(f"import this package as unified_tree.controllers.storage.redis, not as {__name__}")

from unified_tree.controllers.storage.redis.redis_settings import RedisSettings
from unified_tree.controllers.storage.redis.redis_storage import RedisStorage, open_redis

__all__ = ["RedisSettings", "RedisStorage", "open_redis"]
