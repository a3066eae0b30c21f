"""L3 on 3FS: pages in one preallocated file a rank, by USRBIO or the mount, and a metadata service that knows their keys."""

from unified_tree.controllers.storage.hf3fs.hf3fs_settings import Hf3fsSettings
from unified_tree.controllers.storage.hf3fs.hf3fs_storage import Hf3fsStorage, open_hf3fs

__all__ = ["Hf3fsSettings", "Hf3fsStorage", "open_hf3fs"]
