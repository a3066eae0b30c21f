"""One reader a model family: the fields of its `config.json` in, a composition out.

Each follows what the modeling and cache code of `transformers` 5.23 keeps a layer and token. A new family is one module
here and one line in `hf_config.READERS`.
"""
