"""The metadata service: which key lies in which page of which rank's file, for every process that uses those files."""

if __name__ != "unified_tree.controllers.storage.hf3fs.metadata":  # a second name would make every class exist twice
    raise ImportError(f"import this package as unified_tree.controllers.storage.hf3fs.metadata, not as {__name__}")
