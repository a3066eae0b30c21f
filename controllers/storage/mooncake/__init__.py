"""L3 on Mooncake Store: pages in the memory of many machines, by TCP or RDMA. The client is imported when one is opened."""

from unified_tree.controllers.storage.mooncake.mooncake_storage import MooncakeSettings, MooncakeStorage, open_mooncake

__all__ = ["MooncakeSettings", "MooncakeStorage", "open_mooncake"]
