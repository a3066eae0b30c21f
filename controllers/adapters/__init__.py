"""This cache inside serving engines, and links to other prefix caches.

Each adapter imports its engine, and nothing else does.
"""
