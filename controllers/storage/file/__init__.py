"""A store of pages in files of one directory."""

from unified_tree.controllers.storage.file.file_limits import FileLimits
from unified_tree.controllers.storage.file.file_storage import FileStorage

__all__ = ["FileLimits", "FileStorage"]
