"""L3 on SiMM: pages in the memory of many machines, by RDMA. Never run against a real one. The client is imported late."""

from unified_tree.controllers.storage.simm.simm_storage import SimmSettings, SimmStorage, open_simm

__all__ = ["SimmSettings", "SimmStorage", "open_simm"]
