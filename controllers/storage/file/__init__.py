"""A store of pages in files of one directory."""

if __name__ != "unified_tree.controllers.storage.file":  # a second name would make every class exist twice
    raise ImportError(f"import this package as unified_tree.controllers.storage.file, not as {__name__}")

from unified_tree.controllers.storage.file.file_limits import FileLimits
from unified_tree.controllers.storage.file.file_storage import FileStorage

__all__ = ["FileLimits", "FileStorage"]
