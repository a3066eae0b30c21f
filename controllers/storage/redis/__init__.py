"""L3 on Redis or Valkey, one server or a cluster; pages go between sockets and host memory without a copy of our own."""

from unified_tree.controllers.storage.redis.redis_settings import RedisSettings
from unified_tree.controllers.storage.redis.redis_storage import RedisStorage, open_redis

__all__ = ["RedisSettings", "RedisStorage", "open_redis"]
