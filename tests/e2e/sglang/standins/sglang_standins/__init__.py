"""Test-side plug-ins of SGLang, found by the entry points of the `.dist-info` beside this package."""
